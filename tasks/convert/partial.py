"""A folder in the making: TARGET.partial, which becomes TARGET in one step at its end.

journal.jsonl in it has what is being made, in its first line, and then a line for each weight that is
written. A conversion that was killed goes on after the last of them, if it is the same one, and if
the machine has not been started anew: until then what was written is in the kernel's hands.
"""

import fcntl
import json
import shutil
import threading
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
        self._journal = (self.folder / JOURNAL).open("a+")
        try:
            fcntl.flock(self._journal, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._journal.close()
            raise ConversionError(
                f"{self.folder}: another conversion is writing to it; wait for it, or stop it"
            ) from None
        self._journal.seek(0)
        found = _whole_lines(self._journal.read())
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
        self._journal.write(json.dumps(line) + "\n")
        self._journal.flush()

    def finish(self) -> None:
        """The folder is complete."""
        (self.folder / JOURNAL).unlink()
        if self._replace and self.target.exists():
            shutil.rmtree(self.target)
        self.folder.rename(self.target)

    def __exit__(self, *error: object) -> None:
        self._journal.close()


def refuse_existing(target: Path, replace: bool) -> None:
    if target.exists() and not replace:
        raise ConversionError(f"{target}: exists; choose another target, or say --replace")


def room_for(folder: Path, needed: int) -> None:
    """Raises ConversionError when the disk under `folder` has not `needed` bytes."""
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise ConversionError(
            f"{folder}: {needed / 1e9:.2f} GB are needed and {free / 1e9:.2f} GB are free; make room, or choose "
            f"another target"
        )


def _whole_lines(text: str) -> list[Any]:
    """A killed writer can leave half a line, always the last one."""
    return [json.loads(line) for line in text.split("\n")[:-1]]


def _entry(line: dict[str, Any]) -> Entry:
    return Entry(**line | {"parts": [Part(**part) for part in line["parts"]]})
