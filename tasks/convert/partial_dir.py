"""A conversion in progress in the folder TARGET.partial, whose content becomes TARGET atomically at the end.

    files.json   the files to be written; locked by the writing process
    content/     becomes TARGET
    replaced/    with --replace, the previous TARGET until content/ has replaced it

An interrupted conversion starts from the beginning. If it is killed at any moment, even by a power failure, either the
previous or the new TARGET is complete. A folder without a valid files.json, or with files that it does not list, is not
Baton's and is left untouched.
"""

import json
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Self

from baton.infra.process.file_lock import try_lock
from baton.infra.storage.durable import make_folder, rename, sync, sync_tree
from baton.infra.text import size
from baton.tasks.convert.target import check_existing, check_target, normalized, partial_folder
from baton.tasks.models.errors import ConversionError

LISTING, CONTENT, REPLACED = "files.json", "content", "replaced"
_TITLE = "an unfinished conversion"


class Partial:
    """A context manager for the folder. The next conversion to the same target deletes files written before an
    error."""

    def __init__(self, target: Path, files: Iterable[str], inputs: Iterable[Path], replace: bool = False) -> None:
        """`files`: the names of all files that the conversion may write; `inputs`: files and folders that it reads.
        Raises ConversionError if `target` may not be written."""
        self.target = normalized(target)
        self._replace = replace
        check_target(self.target, replace, inputs)
        self._place = partial_folder(self.target)
        self._files = sorted(files)
        self.folder = self._place / CONTENT
        self._check_origin()  # before a lock file is created in the folder

    def __enter__(self) -> Self:
        make_folder(self._place)
        self._lock = _locked(self._place, self.target)
        try:
            self._start()
        except BaseException:
            os.close(self._lock)
            raise
        return self

    def _start(self) -> None:
        self._check_origin()
        self._recover()
        check_existing(self.target, self._replace)
        if self.folder.exists():
            shutil.rmtree(self.folder)
        sync(self._place)  # a power failure could otherwise restore files that the new listing does not name
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, json.dumps({"baton": _TITLE, "files": self._files}).encode(), 0)
        os.fsync(self._lock)
        self.folder.mkdir()

    def _check_origin(self) -> None:
        """Raise ConversionError if the folder has files that no conversion wrote."""
        if not os.path.lexists(self._place):
            return
        if not self._place.is_dir():
            raise ConversionError(_refusal(self._place, "it is a file"))
        listed = _listed(self._place / LISTING)
        known = {LISTING} if listed is None else {LISTING, CONTENT, REPLACED}  # files.json is empty when it is created
        others = [path for path in sorted(self._place.iterdir()) if path.name not in known]
        if others and listed is None:
            raise ConversionError(_refusal(self._place, f"it has no valid {LISTING}"))
        others += self._unlisted(listed or set())
        if others:
            names = ", ".join(str(path.relative_to(self._place)) for path in others[:5])
            raise ConversionError(
                f"{self._place}: contains {names}, which no conversion wrote; move it, or choose another target"
            )

    def _unlisted(self, files: set[str]) -> list[Path]:
        """Return the paths in the content that are neither in `files` nor folders of these."""
        folders = {str(parent) for name in files for parent in Path(name).parents}
        return [
            path
            for path in ([self.folder] if self.folder.is_symlink() else sorted(self.folder.rglob("*")))
            if path.is_symlink() or str(path.relative_to(self.folder)) not in (folders if path.is_dir() else files)
        ]

    def _recover(self) -> None:
        """Recover from a kill during `finish`."""
        replaced = self._place / REPLACED
        if not replaced.exists():
            return
        if not os.path.lexists(self.target):
            rename(replaced, self.target)
        elif self.folder.exists():
            raise ConversionError(
                f"{self.target}: was created while {replaced}, the previous one, was being replaced; move one of them"
            )
        else:
            shutil.rmtree(replaced)

    def finish(self) -> None:
        """Move the complete content to the target."""
        self._check_origin()
        sync_tree(self.folder)
        check_existing(self.target, self._replace)
        if self.target.exists():
            rename(self.target, self._place / REPLACED)
        rename(self.folder, self.target)
        if (self._place / REPLACED).exists():
            shutil.rmtree(self._place / REPLACED)
            sync(self._place)  # the listing must be deleted later, since it shows that Baton wrote the folder
        (self._place / LISTING).unlink()
        try:
            self._place.rmdir()
        except OSError:
            pass  # another conversion has just started in the folder

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        os.close(self._lock)
        if isinstance(error, OSError):
            raise ConversionError(
                f"{self._place}: the conversion stopped ({error}). The same command starts it again, and deletes the "
                f"written files"
            ) from error

    def check_space(self, needed: int) -> None:
        """Raise ConversionError if the folder is not writable or the disk lacks space for `needed` bytes, including
        those of an interrupted conversion."""
        parent = next(path for path in self.folder.parents if path.exists())
        if not (parent.is_dir() and os.access(parent, os.W_OK)):
            raise ConversionError(f"{self.target}: cannot be created in {parent}, which is not a writable folder")
        files = [path.stat() for path in self.folder.rglob("*") if path.is_file()]
        needed -= sum(file.st_blocks * 512 for file in files)
        free = shutil.disk_usage(parent).free
        if free < needed:
            raise ConversionError(
                f"{self._place}: {size(needed)} are needed and {size(free)} are free; free some space, or choose "
                "another target"
            )


def _listed(path: Path) -> set[str] | None:
    """Return the files that a conversion's listing names, or None if it is not a valid listing."""
    try:
        content = json.loads(path.read_bytes())
    except (FileNotFoundError, ValueError, RecursionError):
        return None
    if not isinstance(content, dict) or content.get("baton") != _TITLE:
        return None
    files = content.get("files")
    return set(files) if isinstance(files, list) and all(isinstance(name, str) for name in files) else None


def _locked(place: Path, target: Path) -> int:
    """Lock a folder, and return the descriptor of its listing. Raises ConversionError if another process holds the
    lock."""
    descriptor = os.open(place / LISTING, os.O_RDWR | os.O_CREAT, 0o644)
    if not try_lock(descriptor):
        os.close(descriptor)
        raise ConversionError(f"{place}: another conversion is writing to it; wait for it, or stop it")
    if not os.fstat(descriptor).st_nlink:
        os.close(descriptor)
        raise ConversionError(f"{target}: another conversion has just finished it")
    return descriptor


def _refusal(place: Path, reason: str) -> str:
    return (
        f"{place}: is not an unfinished conversion ({reason}), so it is left untouched; move or delete it, or choose "
        f"another target"
    )
