"""The files of an input that a job receives, and the cache key of these files."""

import errno
import json
import os
import tarfile
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.tasks.core.inputs import input_key, view
from baton.tasks.core.manifest import (
    ALL,
    ALL_AND_RECORD,
    MANIFEST,
    ArtifactError,
    read_manifest,
    verify,
    write_manifest,
)
from baton.tasks.core.stored import fetch, manifest_at, send, send_sealed
from tests.s3 import S3

NAMES = st.sampled_from(["a.txt", "b", "deep/a.txt", "deep/er/c"])
VALUES = st.none() | st.booleans() | st.integers(0, 3) | st.sampled_from([0.5, 1.0, "", "1", "mit"])
FACTS = st.dictionaries(st.sampled_from(["license", "label"]), VALUES | st.lists(VALUES, max_size=2), max_size=2)


@dataclass(frozen=True)
class Made:
    """An artifact, and the record of the run that created it."""

    files: dict[str, bytes]
    facts: dict[str, Any]
    kind: str = "toy"
    record: dict[str, bytes] = field(default_factory=dict)
    spec: dict[str, Any] = field(default_factory=dict)
    parents: dict[str, str] = field(default_factory=dict)
    title: str = ""
    display: dict[str, Any] = field(default_factory=dict)

    def seal(self, folder: Path) -> Path:
        for name, content in (self.files | {f"record/{name}": each for name, each in self.record.items()}).items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        folder.mkdir(exist_ok=True)
        write_manifest(folder, self.kind, self.facts, self.spec, self.parents, title=self.title, display=self.display)
        return folder

    def key(self, folder: Path, patterns: Sequence[str] = ALL) -> str:
        return input_key(read_manifest(folder).identity, str(folder), patterns)


MADE = st.builds(
    Made,
    st.dictionaries(NAMES, st.binary(max_size=2), max_size=2),
    FACTS,
    st.sampled_from(["toy", "rows"]),
    st.dictionaries(st.sampled_from(["metrics.jsonl", "probe.json"]), st.binary(max_size=2), max_size=2),
    st.dictionaries(st.sampled_from(["seed"]), st.integers(0, 1)),
    st.dictionaries(st.sampled_from(["corpus"]), st.sampled_from(["d0", "d1"])),
    st.sampled_from(["", "sft"]),
    st.dictionaries(st.sampled_from(["layout", "place"]), st.integers(0, 1)),
)


def read(folder: Path) -> dict[str, bytes]:
    """Return everything that a stage can read in a folder."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("patterns", [ALL, (), ("*.txt",), (*ALL, "record/probe.json")])
@given(data=st.data())
def test_keys_are_equal_if_and_only_if_all_that_a_stage_can_read_is_equal(
    patterns: tuple[str, ...], data: st.DataObject
) -> None:
    one = data.draw(MADE)
    other = data.draw(st.just(one) | MADE | st.builds(Made, st.just(one.files), st.just(one.facts), st.just(one.kind)))
    with tempfile.TemporaryDirectory() as place:
        folders = [each.seal(Path(place, name)) for each, name in ((one, "one"), (other, "other"))]
        seen = [read(view(folder, Path(place, f"view of {folder.name}"), patterns)) for folder in folders]
        keys = [one.key(folders[0], patterns), other.key(folders[1], patterns)]
    assert (keys[0] == keys[1]) == (seen[0] == seen[1])


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """An artifact with a record."""
    about = Made(
        {"a.txt": b"1", "deep/b.txt": b"2"}, {"license": "mit"}, record={"metrics.jsonl": b"{}", "probe.json": b"[]"},
        spec={"path": "/home/somebody"}, parents={"corpus": "d0"}, title="sft", display={"layout": 2},
    )  # fmt: skip
    return about.seal(tmp_path / "made")


def test_a_view_has_the_content_and_the_facts_and_nothing_else(made: Path, tmp_path: Path) -> None:
    given = view(made, tmp_path / "view", ALL)
    assert sorted(read(given)) == ["a.txt", "deep/b.txt", MANIFEST]
    manifest = json.loads((given / MANIFEST).read_text())
    assert {name: value for name, value in manifest.items() if value} == {
        "kind": "toy",
        "digest": read_manifest(made).digest,
        "identity": read_manifest(made).identity,
        "files": json.loads((made / MANIFEST).read_text())["files"],
        "facts": {"license": "mit"},
    }
    assert verify(given).facts == {"license": "mit"}


def test_an_archive_of_a_view_has_its_files(made: Path, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "view.tar", "w") as archive:
        archive.add(view(made, tmp_path / "view", ALL))
        assert not [member.name for member in archive if member.issym()]


def test_files_of_another_disk_are_linked_by_name(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refused)
    given = view(made, tmp_path / "view", ALL)
    assert (given / "a.txt").readlink() == made / "a.txt"
    assert verify(given, origin=str(made)).facts == {"license": "mit"}


def test_a_file_that_is_missing_is_named(made: Path, tmp_path: Path) -> None:
    (made / "a.txt").unlink()
    with pytest.raises(ArtifactError, match=r"a\.txt is missing"):
        verify(view(made, tmp_path / "view", ALL))


def test_a_file_that_was_added_to_an_artifact_is_not_in_its_view(made: Path, tmp_path: Path) -> None:
    (made / "notes.txt").write_text("machine 7")
    assert "notes.txt" not in read(view(made, tmp_path / "view", ALL))


def test_what_a_stage_names_of_the_record_is_in_its_view(made: Path, tmp_path: Path) -> None:
    assert "record/probe.json" in (probed := read(view(made, tmp_path / "probed", (*ALL, "record/probe.json"))))
    assert "record/metrics.jsonl" not in probed
    everything = view(made, tmp_path / "everything", ALL_AND_RECORD)
    assert read(everything) == read(made)


def test_the_view_of_a_changed_artifact_is_made_anew(made: Path, tmp_path: Path) -> None:
    view(made, tmp_path / "view", ALL_AND_RECORD)
    Made({"a.txt": b"3"}, {}).seal(other := tmp_path / "other")
    assert read(view(other, tmp_path / "view", ALL)) == {"a.txt": b"3"} | {
        MANIFEST: (tmp_path / "view" / MANIFEST).read_bytes()
    }
    assert verify(tmp_path / "view").facts == {}


def test_a_changed_input_is_named_by_the_folder_that_it_is_in(made: Path, tmp_path: Path) -> None:
    given = view(made, tmp_path / "view", ALL)
    (made / "a.txt").write_text("7")
    with pytest.raises(ArtifactError, match=rf"in {made}: a.txt was changed"):
        verify(given, origin=str(made))


def test_changed_facts_are_refused(made: Path) -> None:
    manifest = json.loads((made / MANIFEST).read_text())
    (made / MANIFEST).write_text(json.dumps(manifest | {"facts": {"license": "apache-2.0"}}))
    with pytest.raises(ArtifactError, match="facts were changed"):
        verify(made)


def test_an_artifact_of_an_earlier_version_has_its_digest_as_its_key(made: Path) -> None:
    manifest = json.loads((made / MANIFEST).read_text())
    earlier = {name: value for name, value in manifest.items() if name not in ("identity", "display")}
    (made / MANIFEST).write_text(json.dumps(earlier))
    assert verify(made).identity == ""
    for patterns in (ALL, (*ALL, MANIFEST), (*ALL, "record/probe.json")):
        assert input_key(manifest["digest"], str(made), patterns) == manifest["digest"]


def test_parents_are_in_the_key_of_a_stage_that_reads_them(tmp_path: Path) -> None:
    folders = [Made({}, {}, parents={"corpus": name}).seal(tmp_path / name) for name in ("d0", "d1")]
    content, complete = ({Made({}, {}).key(folder, patterns) for folder in folders} for patterns in (ALL, (MANIFEST,)))
    assert (len(content), len(complete)) == (1, 2)


def test_equal_files_with_other_facts_are_two_artifacts_in_storage(
    s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BATON_CACHE", str(tmp_path / "cache"))
    with s3.flyte(tmp_path):
        storage = f"{s3.address}/{uuid4().hex}"
        licenses = ["mit", "cc-by-nc-4.0"]
        folders = [Made({"a": b"1"}, {"license": each}).seal(tmp_path / each) for each in licenses]
        places = [send(str(folder), storage) for folder in folders]
        digests = [read_manifest(folder).digest for folder in folders]
        assert digests[0] == digests[1]
        assert [manifest_at(place).facts["license"] for place in places] == licenses
        fetched = [read_manifest(fetch(place, digests[0])).facts["license"] for place in places]
        assert fetched == licenses


@pytest.mark.parametrize("patterns", [ALL, ("a",)])
def test_outputs_of_two_jobs_in_a_bucket_are_fetched_with_their_own_facts(
    patterns: Sequence[str], s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BATON_CACHE", str(tmp_path / "cache"))
    licenses = ["mit", "cc-by-nc-4.0"]
    folders = [Made({"a": b"1"}, {"license": each}).seal(tmp_path / each) for each in licenses]
    with s3.flyte(tmp_path):
        home = f"{s3.address}/{uuid4().hex}"  # a bucket that is mounted as the home
        places = [f"{home}/jobs/sft-{number}/output" for number in range(len(folders))]
        for folder, place in zip(folders, places, strict=True):
            send_sealed(folder, place, {})
        fetched = [fetch(place, read_manifest(folders[0]).digest, patterns) for place in places]
    assert [read_manifest(folder).facts["license"] for folder in fetched] == licenses
