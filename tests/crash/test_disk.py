"""The model of a disk, and the recorder that feeds it, with writes whose risks are known."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from baton.infra.storage import durable
from tests.crash.disk import WAYS, Recording, read
from tests.crash.record import read_trace, strace_is_here

needs_strace = pytest.mark.skipif(
    not strace_is_here(), reason="strace is not here (Debian, Ubuntu: apt-get install strace)"
)

RUN = """
import sys
from pathlib import Path
from tests.crash.record import recording
from tests.crash import test_disk
with recording(Path(sys.argv[1])):
    getattr(test_disk, sys.argv[2])(Path(sys.argv[3]))
"""


def record(work: Callable[[Path], None], folder: Path) -> Recording:
    """Record the function `work` of this file in a separate process, in FOLDER/disk, which has a file `old`."""
    disk, trace = folder / "disk", folder / "trace"
    disk.mkdir()
    (disk / "old").write_text("old")
    before = read(disk)
    subprocess.run([sys.executable, "-c", RUN, trace, work.__name__, disk], check=True)
    recording = Recording(before, read_trace(trace, disk, before))
    assert recording.after(len(recording.events), "all").tree() == read(disk).tree()
    return recording


def states(recording: Recording) -> list[dict[str, bytes | None]]:
    """Return the states of the disk after power cuts at all points, in all ways, with some random ones."""
    points = range(len(recording.events) + 1)
    every = [recording.after(point, way, seed).tree() for point in points for way in WAYS for seed in range(20)]
    return [dict(found) for found in {tuple(tree.items()) for tree in every}]


def contents(recording: Recording, name: str) -> set[bytes | None]:
    return {tree.get(name, b"(not there)") for tree in states(recording)}


def write_over(disk: Path) -> None:
    (disk / "old").write_text("new!")


@needs_strace
def test_a_file_that_is_written_over_may_hold_anything(tmp_path: Path) -> None:
    assert contents(record(write_over, tmp_path), "old") >= {b"old", b"", b"new!", bytes(4)}


def rename_without_a_sync(disk: Path) -> None:
    (disk / "part").write_text("new!")
    (disk / "part").replace(disk / "old")


@needs_strace
def test_a_rename_may_be_on_the_disk_before_the_content(tmp_path: Path) -> None:
    assert contents(record(rename_without_a_sync, tmp_path), "old") >= {b"old", b"", b"new!"}


def durable_write(disk: Path) -> None:
    durable.write_text(disk / "old", "new!")


@needs_strace
def test_a_durable_write_leaves_the_old_or_the_new(tmp_path: Path) -> None:
    recording = record(durable_write, tmp_path)
    assert contents(recording, "old") == {b"old", b"new!"}
    assert recording.after(len(recording.events), "none").tree() == {"old": b"new!"}


def many_calls(disk: Path) -> None:
    """Make every call that is modeled."""
    import os
    import shutil

    import numpy as np

    (disk / "folder" / "inner").mkdir(parents=True)
    shutil.copyfile(disk / "old", disk / "copy")  # sendfile
    os.link(disk / "copy", disk / "folder" / "link")
    (disk / "copy").rename(disk / "folder" / "moved")
    np.save(disk / "array.npy", np.arange(100))  # duplicated descriptors, lseek
    with (disk / "log").open("ab") as log:
        log.write(b"first")
        log.flush()
        os.writev(log.fileno(), [b"se", b"cond"])
        if not (child := os.fork()):
            os.write(log.fileno(), b"child")
            os._exit(0)
        os.waitpid(child, 0)
        log.truncate(8)
        os.posix_fallocate(log.fileno(), 0, 20)
    with (disk / "old").open("r+b") as file:
        file.seek(2)
        file.write(b"xyz")
        file.flush()
        os.pwrite(file.fileno(), b"Z", 0)
    os.truncate(disk / "folder" / "link", 2)
    folder = os.open(disk, os.O_RDONLY)
    os.unlink("array.npy", dir_fd=folder)
    (disk / "folder" / "inner").rmdir()
    os.fsync(folder)


@needs_strace
def test_the_recorder_sees_every_call(tmp_path: Path) -> None:
    tree = record(many_calls, tmp_path).after(10**6, "all").tree()
    assert tree["folder/link"] == tree["folder/moved"] == b"ol"
    assert tree["log"] == b"firstsec".ljust(20, b"\0")
    assert tree["old"] == b"Zlxyz"


def removes_a_sealed_folder(disk: Path) -> None:
    from baton.tasks.core.manifest import write_manifest

    (disk / "artifact").mkdir()
    (disk / "artifact" / "weights").write_bytes(b"weights")
    write_manifest(disk / "artifact", "model", {})
    durable.remove(disk / "artifact")


@needs_strace
def test_where_there_is_a_manifest_there_is_what_it_lists(tmp_path: Path) -> None:
    """The listed files exist while an artifact is sealed, and while it is removed."""
    for tree in states(record(removes_a_sealed_folder, tmp_path)):
        if manifest := tree.get("artifact/manifest.json"):
            assert json.loads(manifest)["files"].keys() == {"weights"}
            assert tree["artifact/weights"] == b"weights"
