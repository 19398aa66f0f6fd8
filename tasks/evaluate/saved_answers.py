"""Save the answers of a long evaluation, so that it resumes after it was killed.

    work/answers/part-<calls>/answers.json     the answers of the first <calls> calls

Calls are deterministic: they are always the same, in the same order, and no call depends on an earlier answer.
"""

import json
import time
from collections.abc import Callable
from typing import Any

from baton.infra.storage.durable import remove
from baton.tasks.core.checkpoints import CheckpointFolder
from baton.tasks.core.job import Job
from baton.tasks.core.manifest import write_manifest

FILE = "answers.json"
MAX_PARTS = 2  # older ones are removed
SHARE = 0.02  # largest fraction of the time that is spent on saving


class SavedAnswers:
    """The answers of an evaluation, from earlier attempts and this one."""

    def __init__(self, job: Job) -> None:
        self._folder = CheckpointFolder(job.work / "answers", "part-")
        newest = self._folder.newest()
        self._answers: list[Any] = json.loads((newest / FILE).read_text()) if newest else []
        self._returned = 0
        self._next_save = time.monotonic()

    def answer(self, ask: Callable[[], list[Any]]) -> list[Any]:
        """Return the next call's answer: the saved one, or `ask()`."""
        if self._returned == len(self._answers):
            self._answers.append(ask())
            if time.monotonic() >= self._next_save:
                self._save()
        self._returned += 1
        return list(self._answers[self._returned - 1])

    def _save(self) -> None:
        began = time.monotonic()
        part = self._folder.path / f"{self._folder.prefix}{len(self._answers):08}"
        part.mkdir(parents=True)
        (part / FILE).write_text(json.dumps(self._answers))
        write_manifest(part, "answers", {"calls": len(self._answers)})
        for old in self._folder.complete()[:-MAX_PARTS]:
            remove(old)
        ended = time.monotonic()
        self._next_save = ended + (ended - began) / SHARE

    def remove(self) -> None:
        """Delete the saved answers, after the report is written."""
        self._folder.remove_all()
