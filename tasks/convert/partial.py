"""A folder in the making: TARGET.partial, which becomes TARGET in one step at its end.

journal.jsonl in it has what is being made, in its first line, and then a line for each weight that is
written. A conversion that was killed goes on after the last of them, if it is the same one, and if
the machine has not been started anew: until then what was written is in the kernel's hands.
"""

import fcntl
import json
import os
import shutil
import threading
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

from tasks.convert.errors import ConversionError
from tasks.convert.transfer import Entry, Part

JOURNAL = "journal.jsonl"
_BOOT = Path("/proc/sys/kernel/random/boot_id")


class Partial:
    """Used in a `with`: what is in it after an error stays, to be continued."""

    def __init__(self, target: Path, plan: dict[str, Any], replace: bool = False) -> None:
        """Raises ConversionError when there is something at `target`, and it may not be replaced."""
        self.target, self.folder = target, target.with_name(target.name + ".partial")
        self._plan = json.loads(json.dumps(plan | {"boot": _BOOT.read_text().strip() if _BOOT.exists() else ""}))
        self._replace = replace
        self._lock = threading.Lock()
        self.done: dict[str, Entry] = {}
        refuse_existing(target, replace)

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._journal = (self.folder / JOURNAL).open("ab+")
        try:
            fcntl.flock(self._journal, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._journal.close()
            raise ConversionError(
                f"{self.folder}: another conversion is writing to it; wait for it, or stop it"
            ) from None
        if not os.fstat(self._journal.fileno()).st_nlink:
            self._journal.close()
            raise ConversionError(f"{self.target}: another conversion has just finished it")
        self._journal.seek(0)
        *lines, half = self._journal.read().split(b"\n")  # a killed writer can leave half a line
        self._journal.truncate(self._journal.tell() - len(half))
        found = [json.loads(line) for line in lines]
        if found and found[0] == self._plan:
            self.done = {line["megatron"]: _entry(line) for line in found[1:]}
        else:
            self._begin()
        return self

    def _begin(self) -> None:
        for path in self.folder.iterdir():
            if path.name != JOURNAL:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        self._journal.truncate(0)
        self._write(self._plan)

    def wrote(self, entry: Entry) -> None:
        """A weight is whole in its file."""
        with self._lock:
            self._write(asdict(entry))
            self.done[entry.megatron] = entry

    def _write(self, line: Any) -> None:
        self._journal.write(json.dumps(line).encode() + b"\n")
        self._journal.flush()

    def finish(self) -> None:
        """The folder is complete."""
        (self.folder / JOURNAL).unlink()
        if self._replace and self.target.exists():
            shutil.rmtree(self.target)
        self.folder.rename(self.target)

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._journal.close()
        if isinstance(error, OSError):
            raise ConversionError(
                f"{self.folder}: could not be written ({error}). What is there stays: the same words go on from there"
            ) from error

    def room(self, needed: int) -> None:
        """Raises ConversionError when the disk has not `needed` bytes, those included that are here already."""
        files = [path.stat() for path in self.folder.rglob("*") if path.is_file()]
        needed -= sum(file.st_blocks * 512 for file in files)
        free = shutil.disk_usage(self.folder).free
        if free < needed:
            raise ConversionError(
                f"{self.folder}: {needed / 1e9:.2f} GB are needed and {free / 1e9:.2f} GB are free; make room, or "
                f"choose another target"
            )


def states(folder: Path, names: Iterable[str]) -> list[tuple[str, int, int]]:
    """By which a plan knows its source again: each file's name, size and time of change."""
    found = [(name, (folder / name).stat()) for name in sorted(names)]
    return [(name, state.st_size, state.st_mtime_ns) for name, state in found]


def refuse_existing(target: Path, replace: bool) -> None:
    if os.path.lexists(target) and not replace:
        raise ConversionError(f"{target}: exists; choose another target, or say --replace")


def _entry(line: dict[str, Any]) -> Entry:
    return Entry(**line | {"parts": [Part(**part) for part in line["parts"]]})
