"""Writes that survive a power cut.

Until a file is synced, and the folder that names it, the kernel may lose any part of what was written, or keep
a rename and lose the content (fsync(2); Pillai et al., "All File Systems Are Not Created Equal", OSDI 2014). So
a file that vouches for others (a manifest, a journal, a result) is written after those are synced, and nothing is
deleted before its replacement is.
"""

import errno
import json
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

# errors of hard links that are not possible: another disk or user, too many links, a file system without links
NO_LINK = (errno.EXDEV, errno.EPERM, errno.EACCES, errno.EMLINK, errno.ENOSYS, errno.ENOTSUP)


def sync(path: Path) -> None:
    """Wait until a file's content, or a folder's list of names, is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(folder: Path) -> None:
    """Wait until everything in a folder, and its entry in the parent folder, is on the disk."""
    for directory, _, files in os.walk(folder, topdown=False):
        for name in files:
            path = Path(directory, name)
            if path.is_file() and not path.is_symlink():
                sync(path)
        sync(Path(directory))
    sync(folder.parent)


def open_to_readers(folder: Path) -> None:
    """Let whoever may read a new file read every file in a folder. Libraries that write a temporary file and rename it,
    such as safetensors (0.8), leave files that only their owner may read, whatever the umask says."""
    probe = folder.with_name(f"{folder.name}.{os.getpid()}.partial")
    probe.touch()
    allowed = probe.stat().st_mode
    probe.unlink()
    for directory, _, files in os.walk(folder):
        for path in (Path(directory, name) for name in files):
            if not path.is_symlink() and (mode := path.stat().st_mode) | allowed != mode:
                path.chmod(stat.S_IMODE(mode | allowed))


def make_folder(path: Path) -> None:
    """Make a folder, and its parents, whose names are on the disk when this returns."""
    missing = [parent for parent in path.parents if not parent.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in (path, *missing):  # `path` too, even if it exists: its creator may have been killed before the sync
        sync(folder.parent)


def rename(source: Path, target: Path) -> None:
    """Move a synced file or folder to `target`, which it replaces if that is a file or an empty folder."""
    source.replace(target)
    sync(target.parent)
    if source.parent != target.parent:
        sync(source.parent)


def remove(folder: Path) -> None:
    """Delete a folder, if it exists, with every artifact in it. Manifests are deleted first, so that after a power cut
    no artifact looks complete."""
    for manifest in list(folder.rglob("manifest.json")):
        manifest.unlink()
        sync(manifest.parent)
    shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def replacement(path: Path, synced: bool = True) -> Iterator[Path]:
    """Yield the name of a new file beside `path`, which replaces `path` at the end. An error, such as a full disk,
    leaves `path` as it is and removes the new file. After a crash at any moment `path` has the old content or the new;
    if not `synced`, which is faster, a power cut may lose both."""
    partial = path.with_name(f"{path.name}.{uuid4().hex}.partial")  # other processes and machines may write `path` too
    try:
        yield partial
        if synced:
            sync(partial)
            rename(partial, path)
        else:
            partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Yield an empty folder beside `path`, which is renamed to `path` at the end, when everything in it is on the disk.
    If another process has made `path` meanwhile, that folder stays. An error removes the new folder; a killed process
    leaves it under a name that ends in `.partial`."""
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    remove(partial)
    partial.mkdir(parents=True)
    try:
        yield partial
        sync_tree(partial)
        try:
            rename(partial, path)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
    finally:
        remove(partial)


def write_text(path: Path, text: str) -> None:
    """Replace a file: after a crash at any moment it has the old content or the new."""
    with replacement(path) as partial:
        partial.write_text(text)


def write_json(path: Path, value: Any) -> None:
    """`write_text` of JSON."""
    write_text(path, json.dumps(value, indent=1))
