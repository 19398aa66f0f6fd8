"""A conversion in progress: the folder TARGET.partial, whose content becomes TARGET atomically at the end.

    journal.jsonl   what is converted, the files to be written, and the weights written so far
    content/        becomes TARGET
    replaced/       with --replace: the previous TARGET, until content/ has taken its place
    lock            held by the writing process

An interrupted conversion is resumed by the same conversion. Killed at any moment, even by a power
failure, it leaves either the previous or the new TARGET, complete. A folder without a valid journal, or with files
that the journal does not list, is not Baton's and is left untouched.
"""

import os
import re
import shutil
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from infra.process.file_lock import try_lock
from infra.storage.durable import make_folder, rename, sync, sync_tree
from tasks.convert import journal
from tasks.convert.journal import JOURNAL
from tasks.convert.mapping import Weight
from tasks.convert.target import check_existing, check_target, normalized, partial_folder
from tasks.convert.transfer import Entry
from tasks.models.errors import ConversionError

CONTENT, REPLACED, LOCK = "content", "replaced", "lock"
_PARTIAL_JOURNAL = re.compile(r"journal\.jsonl\.\d+\.partial")  # left by a killed writer


@dataclass(frozen=True)
class Files:
    """The names of all files that a conversion may write."""

    large: list[str]  # with weights: kept when a conversion is resumed
    small: list[str]  # rewritten when a conversion is resumed


class Partial:
    """A context manager. What was written before an error is kept, so that the conversion can be resumed."""

    def __init__(
        self, target: Path, plan: dict[str, Any], files: Files, inputs: Iterable[Path], replace: bool = False
    ) -> None:
        """`inputs`: files and folders that are read. Raises ConversionError if `target` may not be written."""
        self.target = normalized(target)
        self._replace = replace
        check_target(self.target, replace, inputs)
        self._place = partial_folder(self.target)
        self._files = files
        self._header = journal.header(plan, [*files.large, *files.small])
        self._append = threading.Lock()
        self.folder = self._place / CONTENT
        self._written: dict[str, Entry] = {}  # by name, from the journal
        self._check_origin()  # before the lock file is created in it

    def __enter__(self) -> Self:
        make_folder(self._place)
        self._lock = _locked(self._place, self.target)
        try:
            self._open()
        except BaseException:
            os.close(self._lock)
            raise
        return self

    def _open(self) -> None:
        unfinished = self._check_origin()
        self._recover()
        check_existing(self.target, self._replace)
        if unfinished and journal.same(unfinished[0], self._header):
            self._written = unfinished[1]
            for name in self._files.small:
                (self.folder / name).unlink(missing_ok=True)
        elif self.folder.exists():
            shutil.rmtree(self.folder)
            sync(self._place)  # otherwise a power failure could restore files that the journal does not list
        for path in self._place.iterdir():
            if _PARTIAL_JOURNAL.fullmatch(path.name):
                path.unlink()
        journal.write(self._place / JOURNAL, self._header, self._written)
        self._journal = os.open(self._place / JOURNAL, os.O_WRONLY | os.O_APPEND)
        self.folder.mkdir(exist_ok=True)

    def _check_origin(self) -> tuple[dict[str, Any], dict[str, Entry]] | None:
        """The journal's content. Raises ConversionError if the folder has files that no conversion wrote."""
        if not os.path.lexists(self._place):
            return None
        if not self._place.is_dir():
            raise ConversionError(_refusal(self._place, "it is a file"))
        unfinished = journal.read(self._place / JOURNAL)
        known = {JOURNAL, LOCK, CONTENT, REPLACED} if unfinished else {LOCK}  # the lock is created before the journal
        others = [path for path in sorted(self._place.iterdir()) if path.name not in known]
        others = [path for path in others if not _PARTIAL_JOURNAL.fullmatch(path.name)]
        if not unfinished and others:
            raise ConversionError(_refusal(self._place, f"it has no valid {JOURNAL}"))
        others += self._unlisted(set(unfinished[0]["files"])) if unfinished else []
        if others:
            names = ", ".join(str(path.relative_to(self._place)) for path in others[:5])
            raise ConversionError(
                f"{self._place}: contains {names}, which no conversion wrote; move it, or choose another target"
            )
        return unfinished

    def _unlisted(self, files: set[str]) -> list[Path]:
        """Paths in the content that are neither in `files` nor folders of them."""
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

    def done(self, weight: Weight) -> Entry | None:
        """The journal's entry of a weight, if it was written before; to be checked against the files."""
        entry = self._written.get(weight.name)
        return entry if entry and entry.describes(weight) else None

    def record(self, entry: Entry) -> None:
        """Add a weight that is completely written to the journal."""
        with self._append:
            journal.append(self._journal, entry)

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
            sync(self._place)  # the journal must outlive it, to show that Baton wrote it
        (self._place / JOURNAL).unlink()
        (self._place / LOCK).unlink()
        try:
            self._place.rmdir()
        except OSError:
            pass  # another conversion has just started in the folder

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        os.close(self._journal)
        os.close(self._lock)
        if isinstance(error, OSError):
            raise ConversionError(
                f"{self._place}: the conversion stopped ({error}). What was written is kept: the same command "
                f"resumes the conversion"
            ) from error

    def check_space(self, needed: int) -> None:
        """Raises ConversionError if the folder is not writable or the disk lacks space for `needed` bytes, those
        already written included."""
        parent = next(path for path in self.folder.parents if path.exists())
        if not (parent.is_dir() and os.access(parent, os.W_OK)):
            raise ConversionError(f"{self.target}: cannot be created in {parent}, which is not a writable folder")
        files = [path.stat() for path in self.folder.rglob("*") if path.is_file()]
        needed -= sum(file.st_blocks * 512 for file in files)
        free = shutil.disk_usage(parent).free
        if free < needed:
            raise ConversionError(
                f"{self._place}: {needed / 1e9:.2f} GB are needed and {free / 1e9:.2f} GB are free; free some space, "
                f"or choose another target"
            )


def states(folder: Path, names: Iterable[str]) -> list[tuple[str, int, int, int, int]]:
    """What identifies a plan's source: each file's name, size, inode, and times of its content and its inode. Another
    file can have the same size and time of its content, which `cp -p` and `rsync -t` set; the time of the inode is the
    kernel's. A digest would take as long as converting anew."""
    files = [(name, (folder / name).stat()) for name in sorted(names)]
    return [(name, file.st_size, file.st_ino, file.st_mtime_ns, file.st_ctime_ns) for name, file in files]


def _locked(place: Path, target: Path) -> int:
    """Lock a folder; returns the lock's descriptor. Raises ConversionError if another process holds it."""
    descriptor = os.open(place / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
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
