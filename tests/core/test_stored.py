"""Artifacts in storage are sent once, fetched once, and never used if incomplete. The storage is a real S3 server."""

import multiprocessing
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from flytekit import FlyteContextManager
from flytekit.core.type_engine import TypeEngine
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from baton.infra.storage import buckets as storage
from baton.infra.storage.buckets import StorageError
from baton.tasks.core.manifest import ArtifactError, verify, write_manifest
from baton.tasks.core.stored import RECREATE_HINT, check_sizes, fetch, send
from baton.tasks.data.artifact import Tokenizer
from tests.s3 import S3, Faults, disturbed

FACTS = {"vocab_size": 3, "eos_id": 0, "pad_id": 0}


def made(folder: Path, files: dict[str, bytes] | None = None) -> Tokenizer:
    for name, content in (files or {"vocabulary.txt": uuid4().bytes, "folder/merges.txt": b"a b"}).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    (folder / "record").mkdir(exist_ok=True)
    (folder / "record/metrics.jsonl").write_text("{}\n")
    write_manifest(folder, "tokenizer", FACTS)
    return Tokenizer.from_directory(folder)


@pytest.fixture
def where(s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A location on S3 that no other test uses, as seen from a pod."""
    monkeypatch.setenv("BATON_CACHE", str(tmp_path / "cache"))
    with s3.flyte(tmp_path):
        yield f"{s3.address}/{uuid4().hex}"


def key(place: str, name: str) -> str:
    return f"{place}/{name}".removeprefix("s3://flyte/")


def test_what_is_sent_comes_back_with_its_record(where: str, tmp_path: Path) -> None:
    artifact = made(tmp_path / "output")
    place = send(artifact.place, where)
    assert place == f"{where}/artifacts/{artifact.key}"
    here = artifact.at(place).local()
    assert verify(here, artifact.digest).facts == FACTS
    assert (here / "record/metrics.jsonl").read_text() == "{}\n"


def test_it_is_sent_once_and_its_manifest_last(s3: S3, where: str, tmp_path: Path) -> None:
    artifact = made(tmp_path / "output")
    with disturbed(s3, faults := Faults()) as proxied, proxied.flyte(tmp_path):
        place = send(artifact.place, where)
        puts = [line.partition("?")[0] for line in faults.seen if line.startswith("PUT")]
        assert puts[-1] == f"PUT /flyte/{key(place, 'manifest.json')}" and len(puts) == 4
        send(artifact.place, where)
    assert len([line for line in faults.seen if line.startswith("PUT")]) == 4


def test_what_was_lost_since_is_sent_again_and_nothing_else(s3: S3, where: str, tmp_path: Path) -> None:
    artifact = made(tmp_path / "output")
    place = send(artifact.place, where)
    s3.delete(key(place, "folder/merges.txt"))
    with disturbed(s3, faults := Faults()) as proxied, proxied.flyte(tmp_path):
        send(artifact.place, where)
    puts = [line.partition("?")[0].rpartition("/")[2] for line in faults.seen if line.startswith("PUT")]
    assert puts == ["merges.txt", "manifest.json"]
    check_sizes(place, artifact.digest)


def test_a_large_file_goes_in_parts(s3: S3, where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "PART_BYTES", 5 << 20)  # the minimum of S3
    artifact = made(tmp_path / "output", {"weights.bin": bytes(range(256)) * (13 << 12)})
    with disturbed(s3, faults := Faults()) as proxied, proxied.flyte(tmp_path):
        place = send(artifact.place, where)
        verify(fetch(place, artifact.digest), artifact.digest)
    assert sum("partNumber=" in line for line in faults.seen) == 3


def test_a_long_transfer_says_how_far_it_is(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(storage, "REPORT_AFTER_S", 0.0)
    artifact = made(tmp_path / "output", {"weights.bin": bytes(3_000_000)})
    place = send(artifact.place, where)
    fetch(place, artifact.digest)
    said = capsys.readouterr().err
    assert f"3.0 MB of 3.0 MB to {place}, " in said and f"3.0 MB of 3.0 MB from {place}, " in said


def test_a_shared_folder_is_storage_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    artifact = made(tmp_path / "output")
    place = send(artifact.place, str(tmp_path / "shared"))
    verify(Path(place), artifact.digest)
    assert send(artifact.place, str(tmp_path / "shared")) == place
    assert artifact.at(place).local() == Path(place)


# The network


@pytest.mark.long
@pytest.mark.parametrize("fault", [{"refused": 8}, {"cut": 3}, {"delay_s": 0.3}], ids=["503", "cut", "slow"])
def test_a_disturbed_network_is_waited_for(s3: S3, where: str, tmp_path: Path, fault: dict[str, Any]) -> None:
    artifact = made(tmp_path / "output")
    with disturbed(s3, going := Faults(**fault)) as proxied, proxied.flyte(tmp_path):
        place = send(artifact.place, where)
    check_sizes(place, artifact.digest)
    with disturbed(s3, coming := Faults(**fault)) as proxied, proxied.flyte(tmp_path):
        verify(fetch(place, artifact.digest), artifact.digest)
    assert going.refused == going.cut == coming.refused == coming.cut == 0


def test_storage_that_stays_away_is_a_named_error_that_another_attempt_may_cure(
    s3: S3, where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "PATIENCE_S", 1.0)
    artifact = made(tmp_path / "output")
    with s3.at("http://127.0.0.1:9").flyte(tmp_path), pytest.raises(StorageError, match="tried for") as caught:
        send(artifact.place, where)
    assert caught.value.curable and artifact.digest in str(caught.value)


def test_flyte_s_literals_fetch_nothing_and_a_manifest_comes_alone(s3: S3, where: str, tmp_path: Path) -> None:
    artifact = made(tmp_path / "output")
    artifact = artifact.at(send(artifact.place, where))
    with disturbed(s3, faults := Faults()) as proxied, proxied.flyte(tmp_path):
        context = FlyteContextManager.current_context()
        literal = TypeEngine.to_literal(context, artifact, Tokenizer, TypeEngine.to_literal_type(Tokenizer))
        read = TypeEngine.to_python_value(context, literal, Tokenizer)
        assert faults.seen == []
        assert read.manifest().digest == artifact.digest
    assert {line.rpartition(" ")[2] for line in faults.seen} == {f"/flyte/{key(artifact.place, 'manifest.json')}"}


def test_a_refusal_is_not_waited_for(s3: S3, where: str, tmp_path: Path) -> None:
    artifact = made(tmp_path / "output")
    faults = Faults(refused=1000, status=403)
    with disturbed(s3, faults) as refusing, refusing.flyte(tmp_path), pytest.raises(StorageError) as caught:
        send(artifact.place, where)
    assert "credentials" in str(caught.value)
    assert not caught.value.curable


def test_a_bucket_that_is_not_there_is_named(where: str, tmp_path: Path) -> None:
    artifact = made(tmp_path / "output")
    with pytest.raises(StorageError, match=r"s3://elsewhere.*BATON_STORAGE"):
        send(artifact.place, "s3://elsewhere/baton")


# Incomplete artifacts


def test_reading_an_artifact_whose_folder_is_gone_names_the_way_out(tmp_path: Path) -> None:
    context = FlyteContextManager.current_context()
    artifact = made(tmp_path / "output")
    literal = TypeEngine.to_literal(context, artifact, Tokenizer, TypeEngine.to_literal_type(Tokenizer))
    shutil.rmtree(tmp_path / "output")
    with pytest.raises(ArtifactError, match=r"tokenizer in .*output.*: its directory is gone.*--overwrite-cache"):
        TypeEngine.to_python_value(context, literal, Tokenizer).local()


def test_without_a_manifest_nothing_is_there(s3: S3, where: str, tmp_path: Path) -> None:
    artifact = made(tmp_path / "output")
    place = send(artifact.place, where)
    s3.delete(key(place, "manifest.json"))
    with pytest.raises(ArtifactError, match=r"no manifest.json") as caught:
        fetch(place, artifact.digest)
    assert place in str(caught.value) and RECREATE_HINT in str(caught.value)


@pytest.mark.parametrize("content", [None, b"cut"], ids=["missing", "cut off"])
def test_a_file_that_is_not_there_is_named(s3: S3, where: str, tmp_path: Path, content: bytes | None) -> None:
    artifact = made(tmp_path / "output")
    place = send(artifact.place, where)
    s3.delete(key(place, "vocabulary.txt"))
    if content:
        s3.write(key(place, "vocabulary.txt"), content)
    for attempt in (fetch, check_sizes):
        with pytest.raises(ArtifactError, match=r"vocabulary.txt: missing or truncated.*--overwrite-cache") as caught:
            attempt(place, artifact.digest)
        assert f"tokenizer {artifact.digest[:12]} at {place}" in str(caught.value)


def test_damage_is_seen_and_nobody_relies_on_it_any_more(s3: S3, where: str, tmp_path: Path) -> None:
    artifact = made(tmp_path / "output", {"vocabulary.txt": b"good"})
    place = send(artifact.place, where)
    s3.write(key(place, "vocabulary.txt"), b"evil")
    with pytest.raises(ArtifactError, match=r"is damaged: .*vocabulary.txt was changed"):
        fetch(place, artifact.digest)
    assert not list((tmp_path / "cache/artifacts").glob("*/manifest.json"))
    with pytest.raises(ArtifactError, match=r"no manifest.json"):
        check_sizes(place, artifact.digest)
    s3.delete(key(place, "vocabulary.txt"))
    verify(fetch(send(artifact.place, where), artifact.digest))


# The cache


def test_a_node_fetches_it_once(s3: S3, where: str, tmp_path: Path) -> None:
    artifact = made(tmp_path / "output")
    place = send(artifact.place, where)
    here = fetch(place, artifact.digest)
    assert here == tmp_path / "cache/artifacts" / artifact.key
    with s3.at("http://127.0.0.1:9").flyte(tmp_path):
        assert fetch(place, artifact.digest) == here


def test_only_some_files_are_fetched_and_those_are_checked(s3: S3, where: str, tmp_path: Path) -> None:
    artifact = made(tmp_path / "output", {"vocabulary.txt": b"good", "folder/merges.txt": b"a b"})
    place = send(artifact.place, where)
    part = fetch(place, artifact.digest, ["*.txt", "record/*"])
    assert verify(part, artifact.digest)
    assert (part / "record/metrics.jsonl").exists()
    manifest_alone = fetch(place, artifact.digest, [])
    assert [path.name for path in manifest_alone.iterdir()] == ["manifest.json"]
    s3.write(key(place, "folder/merges.txt"), b"c d")
    assert not (fetch(place, artifact.digest, ["voc*"]) / "folder").exists()
    with pytest.raises(ArtifactError, match=r"is damaged: .*folder/merges.txt was changed"):
        fetch(place, artifact.digest, ["folder/*"])


def test_what_was_fetched_whole_is_not_fetched_again_in_part(s3: S3, where: str, tmp_path: Path) -> None:
    artifact = made(tmp_path / "output")
    place = send(artifact.place, where)
    whole = fetch(place, artifact.digest)
    with s3.at("http://127.0.0.1:9").flyte(tmp_path):
        assert fetch(place, artifact.digest, ["voc*"]) == whole


def test_a_damaged_copy_is_fetched_again(where: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    artifact = made(tmp_path / "output")
    place = send(artifact.place, where)
    (fetch(place, artifact.digest) / "vocabulary.txt").write_bytes(b"evil")
    verify(fetch(place, artifact.digest), artifact.digest)
    assert "Fetching it again" in capsys.readouterr().err


def test_what_a_killed_fetch_left_is_removed(where: str, tmp_path: Path) -> None:
    artifact = made(tmp_path / "output")
    place = send(artifact.place, where)
    left = tmp_path / f"cache/artifacts/{artifact.key}.0.partial"
    shutil.copytree(tmp_path / "output", left)
    fetch(place, artifact.digest)
    assert not left.exists()


def _fetch_in_a_process(server: S3, sandbox: Path, place: str, digest: str) -> None:
    with server.flyte(sandbox):
        verify(fetch(place, digest), digest)


def test_pods_of_a_node_may_fetch_at_the_same_time(s3: S3, where: str, tmp_path: Path) -> None:
    artifact = made(tmp_path / "output")
    place = send(artifact.place, where)
    context = multiprocessing.get_context("spawn")
    with disturbed(s3, faults := Faults(delay_s=0.1)) as proxied:
        words = (proxied, tmp_path, place, artifact.digest)
        processes = [context.Process(target=_fetch_in_a_process, args=words) for _ in range(2)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
    assert [process.exitcode for process in processes] == [0, 0]
    assert sum("vocabulary.txt" in line for line in faults.seen) == 1


# Arbitrary trees

NAMES = st.from_regex(r"[a-z0-9_ .%+é-]{1,12}", fullmatch=True).filter(lambda name: name.strip(". "))


@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(files=st.dictionaries(st.lists(NAMES, min_size=1, max_size=3).map("/".join), st.binary(max_size=64), max_size=6))
def test_any_tree_comes_back_as_it_was(where: str, tmp_path: Path, files: dict[str, bytes]) -> None:
    folder = tmp_path / uuid4().hex
    try:
        artifact = made(folder, files)
    except (FileExistsError, NotADirectoryError, IsADirectoryError):  # a name that is both a file and a folder
        return
    here = fetch(send(artifact.place, where), artifact.digest)
    verify(here, artifact.digest)
