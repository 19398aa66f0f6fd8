"""What a long evaluation has so far, kept for a resume.

    work/answers/part-<calls>/answers.json     what so many calls to vLLM have answered, from the first

The calls are always the same and in the same order, and none depends on those before it.
"""

import json
import time
from collections.abc import Callable
from typing import Any

from tasks.checkpoints import CheckpointFolder
from tasks.job import Job
from tasks.manifest import remove, write_manifest

FILE = "answers.json"
KEEP = 2  # parts
SHARE = 0.02  # of the time may go into saving


class Kept:
    """The answers of an evaluation, of earlier attempts and of this one."""

    def __init__(self, job: Job) -> None:
        self._folder = CheckpointFolder(job.work / "answers", "part-")
        newest = self._folder.newest()
        self._answers: list[Any] = json.loads((newest / FILE).read_text()) if newest else []
        self._given = 0
        self._next_save = time.monotonic()

    def answer(self, ask: Callable[[], list[Any]]) -> list[Any]:
        """The answer to the next call: an earlier attempt's, or `ask`'s."""
        if self._given == len(self._answers):
            self._answers.append(ask())
            if time.monotonic() >= self._next_save:
                self._save()
        self._given += 1
        return list(self._answers[self._given - 1])

    def _save(self) -> None:
        began = time.monotonic()
        part = self._folder.path / f"{self._folder.prefix}{len(self._answers):08}"
        part.mkdir(parents=True)
        (part / FILE).write_text(json.dumps(self._answers))
        write_manifest(part, "answers", {"calls": len(self._answers)}, {}, {})
        for old in self._folder.complete()[:-KEEP]:
            remove(old)
        ended = time.monotonic()
        self._next_save = ended + (ended - began) / SHARE

    def remove(self) -> None:
        """When the report is on the disk."""
        self._folder.remove_all()
