"""Atomic downloads from an address, each of them done once. The storage is a real S3 server."""

import os
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from blake3 import blake3

from baton.infra.storage.address import BLOCK_BYTES, DIGEST, fetch, files_in, find, pack
from baton.infra.storage.buckets import StorageError
from baton.tasks.convert.load_hf_spec import LoadHFSpec
from baton.tasks.data.source_spec import FilesSource
from baton.tasks.data.spec import CorpusSpec
from tests.s3 import S3, Faults, disturbed

FILES = {"a.txt": b"one", "b.txt": b"two" * 100_000}
PROGRAM = "import sys; from baton.infra.storage.address import fetch; print(fetch(sys.argv[1]))"


@pytest.fixture
def where(s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a folder with two files."""
    monkeypatch.setenv("BATON_CACHE", str(tmp_path / "cache"))
    place = f"{s3.address}/{uuid4().hex}"
    for name, content in FILES.items():
        put(s3, f"{place}/{name}", content)
    with s3.flyte(tmp_path):
        yield place


def put(s3: S3, place: str, content: bytes) -> None:
    s3.write(place.removeprefix(f"{s3.address}/"), content)


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def downloading(s3: S3, place: str) -> subprocess.Popen[str]:
    words = [sys.executable, "-c", PROGRAM, place]
    return subprocess.Popen(words, env=os.environ | s3.environment(), stdout=subprocess.PIPE, text=True)


def test_several_processes_bring_a_folder_once(s3: S3, where: str) -> None:
    with disturbed(s3, faults := Faults()) as proxied:
        processes = [downloading(proxied, where) for _ in range(2)]
        (first, second) = (Path(each.communicate()[0].strip()) for each in processes)
    assert first == second
    assert content(first) == FILES
    assert len([each for each in faults.seen if each.startswith("GET") and each.endswith(("a.txt", "b.txt"))]) == 2


def test_a_folder_that_changed_is_brought_anew(s3: S3, where: str) -> None:
    before = fetch(where)
    put(s3, f"{where}/a.txt", b"uno")
    assert content(fetch(where)) == FILES | {"a.txt": b"uno"}
    assert content(before) == FILES


def test_a_process_that_is_killed_leaves_nothing_that_is_believed(s3: S3, where: str, tmp_path: Path) -> None:
    with disturbed(s3, Faults(delay_s=0.5)) as slow:
        process = downloading(slow, where)
        while not list((tmp_path / "cache").glob("brought/*.partial")):
            time.sleep(0.005)
        process.kill()
        process.communicate()
    assert list((tmp_path / "cache").glob("brought/*.partial"))
    assert not [path for path in (tmp_path / "cache/brought").iterdir() if path.suffix not in (".lock", ".partial")]
    assert content(fetch(where)) == FILES
    assert not list((tmp_path / "cache").glob("brought/*.partial"))


def test_a_whole_file_is_read_in_blocks(s3: S3, where: str, tmp_path: Path) -> None:
    large = bytes(BLOCK_BYTES + 1)
    put(s3, f"{where}/large", large)
    with disturbed(s3, faults := Faults()) as proxied, proxied.flyte(tmp_path):
        (file,) = find(f"{where}/large")
        with file.open() as stream:
            assert stream.read() == large
    assert len([each for each in faults.seen if each.startswith("GET") and each.endswith("large")]) == 2


def damage(folder: Path, how: str) -> None:
    """Damage a file as a disk, a person or a program might, without changing its name, size or time."""
    file, times = folder / "a.txt", (folder / "a.txt").stat()
    if how == "changed":
        file.write_bytes(b"eno")
        os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    elif how == "removed":
        file.unlink()
    elif how == "added":
        (folder / "c.txt").write_text("four")
    else:
        file.rename(folder / "d.txt")


@pytest.mark.parametrize("how", ["changed", "removed", "added", "renamed"])
@pytest.mark.parametrize("kind", ["folder", "archive"])
def test_a_copy_that_was_changed_is_brought_anew(
    where: str, archive: str, kind: str, how: str, capsys: pytest.CaptureFixture[str]
) -> None:
    address = where if kind == "folder" else archive
    copy = fetch(address)
    damage(copy, how)
    assert content(fetch(address)) == FILES
    assert f"its copy in {copy} was changed or is incomplete" in capsys.readouterr().err
    before = [path.stat() for path in sorted(copy.iterdir())]
    assert fetch(address) == copy
    assert [path.stat().st_ino for path in sorted(copy.iterdir())] == [each.st_ino for each in before]


def test_nothing_at_an_address_is_reported(where: str) -> None:
    with pytest.raises(StorageError, match="none: nothing exists there"):
        fetch(f"{where}/none")


def packed(s3: S3, folder: Path, place: str) -> str:
    """Pack a folder's files into an archive, and return its address."""
    digest = pack(files_in(folder), folder.with_suffix(".tar"))
    put(s3, f"{place}/files.tar", folder.with_suffix(".tar").read_bytes())
    return f"{place}/files.tar{DIGEST}{digest}"


@pytest.fixture
def archive(s3: S3, where: str, tmp_path: Path) -> str:
    (tmp_path / "mine").mkdir()
    for name, each in FILES.items():
        (tmp_path / "mine" / name).write_bytes(each)
    return packed(s3, tmp_path / "mine", f"{where}/one")


def test_an_archive_comes_back_as_the_files_that_were_packed(archive: str) -> None:
    assert content(fetch(archive)) == FILES


def test_the_same_files_elsewhere_have_the_same_digest(s3: S3, where: str, archive: str, tmp_path: Path) -> None:
    shutil.copytree(tmp_path / "mine", tmp_path / "moved", copy_function=shutil.copyfile)
    os.utime(tmp_path / "moved/a.txt", (0, 0))
    again = packed(s3, tmp_path / "moved", f"{where}/two")
    assert again != archive
    assert again.partition(DIGEST)[2] == archive.partition(DIGEST)[2]
    (tmp_path / "moved/a.txt").rename(tmp_path / "moved/c.txt")
    assert packed(s3, tmp_path / "moved", f"{where}/three").partition(DIGEST)[2] != archive.partition(DIGEST)[2]


def test_an_archive_s_files_have_one_version_on_every_machine(
    archive: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pods share what they derive from the files, by a key that contains the version."""
    here = FilesSource(path=archive).files()
    monkeypatch.setenv("BATON_CACHE", str(tmp_path / "another-node"))
    there = FilesSource(path=archive).files()
    assert [file.version for file in there] == [file.version for file in here]
    assert [file.place for file in there] != [file.place for file in here]
    assert not any(file.changed() for file in there)


def test_an_archive_that_was_damaged_is_refused(s3: S3, archive: str, tmp_path: Path) -> None:
    place, _, digest = archive.partition(DIGEST)
    put(s3, place, s3.read(place.removeprefix(f"{s3.address}/")).replace(b"one", b"eno"))
    with pytest.raises(StorageError, match=f"its BLAKE3 is not {digest}"):
        fetch(archive)
    assert [path.suffix for path in (tmp_path / "cache/brought").iterdir()] == [".lock"]


def link(name: str, target: str) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname = tarfile.SYMTYPE, target
    return entry


@pytest.mark.parametrize("entry", [tarfile.TarInfo("../out"), tarfile.TarInfo("/out"), link("out", "/etc")])
def test_an_archive_of_more_than_files_is_refused(s3: S3, where: str, tmp_path: Path, entry: tarfile.TarInfo) -> None:
    made = tmp_path / "made.tar"
    with tarfile.open(made, "w") as tar:
        tar.addfile(entry)
    put(s3, f"{where}/files.tar", made.read_bytes())
    with pytest.raises(StorageError, match="is not a tar archive of files: it has"):
        fetch(f"{where}/files.tar{DIGEST}{blake3(made.read_bytes()).hexdigest()}")


def test_an_archive_is_unpacked_by_the_first_python_3_11_too(archive: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tarfile of Python 3.11.2, which Debian 12 has, lacks filters."""
    monkeypatch.delattr(tarfile.TarFile, "extractall")
    assert content(fetch(archive)) == FILES


def test_an_archive_that_is_here_is_not_asked_for_again(s3: S3, archive: str) -> None:
    fetch(archive)
    s3.delete(archive.partition(DIGEST)[0].removeprefix(f"{s3.address}/"))
    assert content(fetch(archive)) == FILES
    with pytest.raises(StorageError, match="submit the run again from the machine with its files"):
        fetch(archive[:-1] + ("0" if archive[-1] != "0" else "1"))


def test_an_archive_is_known_by_its_content_wherever_it_is(archive: str) -> None:
    """The content is in the stage's cache key and in the name of its job."""
    name = archive.partition(DIGEST)[2]
    one, other = (CorpusSpec(source=FilesSource(path=f"s3://{each}{DIGEST}{name}")).pinned() for each in "ab")
    assert one.identity() == other.identity()
    (what, how), (same, elsewhere) = one.split_options(), other.split_options()
    assert what == same
    assert how != elsewhere
    assert CorpusSpec.model_validate_json(what.model_dump_json()).with_options(how) == one


def test_an_address_without_a_digest_is_known_by_itself() -> None:
    one, other = (LoadHFSpec(model=f"s3://{each}/model", state="x") for each in "ab")
    assert one.identity() != other.identity()
    assert one.split_options() == (one, {})
