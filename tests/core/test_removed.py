"""Artifacts in storage whose files `baton gc` has removed."""

from pathlib import Path
from uuid import uuid4

from baton.tasks.cache_hit import check, is_missing
from baton.tasks.core.manifest import write_manifest
from baton.tasks.core.removed import remove_stored, was_removed
from baton.tasks.core.stored import manifest_at, send
from tests.s3 import S3
from tests.stage.chain import Text


def test_an_artifact_in_a_bucket_keeps_its_manifest_and_can_be_sent_again(s3: S3, tmp_path: Path) -> None:
    folder = tmp_path / "text"
    folder.mkdir()
    for name in ("a.txt", "b.txt"):
        (folder / name).write_text(name)
    write_manifest(folder, "text", {"letters": 1})
    with s3.flyte(tmp_path):
        storage = f"{s3.address}/{uuid4().hex}"
        place = send(str(folder), storage)
        assert not was_removed(place) and not is_missing(place)
        remove_stored(place, manifest_at(place))
        assert was_removed(place) and is_missing(place)
        check(Text.from_place(place))  # it counts as cached, as one on this machine does
        assert send(str(folder), storage) == place
        assert not was_removed(place)
        check(Text.from_place(place))
