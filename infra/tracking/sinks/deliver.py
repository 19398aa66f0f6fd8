"""Deliver executions from the spool to a tracker: those that were left over, and one while it runs.

A run that has ended and is delivered is noted in its folder by its digest (`sent.<tracker>`), and an execution that is
completely delivered is marked (`delivered.<tracker>`). After a kill, what lacks its note is sent again, which changes
nothing: see `Sink.send`. No folder of a stage has a name with a dot.
"""

import os
import select
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from baton.infra.process.file_lock import try_lock
from baton.infra.progress import say
from baton.infra.tracking.sinks import TRACKERS, Sink
from baton.infra.tracking.sinks.runs import Reader, Run
from baton.infra.tracking.spool import RecordDamaged, close_if_idle, delivered_mark, executions, read_execution

PERIOD_S = 2.0  # between two looks at the spool
STDIN = 0


def waiting_for(tracker: str) -> list[Path]:
    """The folders of the executions that a tracker does not have completely, oldest first."""
    found = []
    for folder in executions():
        try:
            if tracker in read_execution(folder).also and not is_delivered(folder, tracker):
                found.append(folder)
        except RecordDamaged as error:
            say(f"tracking: {error}")
    return found


def forget(execution: Path) -> None:
    """Remove the notes of what trackers have, so that all of an execution is sent again."""
    for pattern in ("delivered.*", "sent.*", "*/sent.*"):
        for note in execution.glob(pattern):
            note.unlink(missing_ok=True)


def is_delivered(execution: Path, tracker: str) -> bool:
    """Return whether a tracker has all of an execution."""
    return (execution / delivered_mark(tracker)).exists()


def deliver_left_over(tracker: str) -> int:
    """Deliver the executions that a tracker lacks and on which no process works. Returns the number of those that were
    not delivered, because a record is damaged."""
    failures = 0
    for folder in waiting_for(tracker):
        try:
            if close_if_idle(folder):
                delivery = Delivery(tracker, folder)
                with delivery.alone() as is_alone:
                    if is_alone:
                        delivery.finish()
        except RecordDamaged as error:
            say(f"tracking: {error}")
            failures += 1
    return failures


def deliver_while_it_runs(tracker: str, folder: Path) -> None:
    """Deliver an execution until it has ended, or until the process that started this one has closed its standard
    input or has ended. If another process delivers the execution, do nothing until that one ends."""
    delivery = Delivery(tracker, folder)
    while True:
        is_last = _is_closed(STDIN)  # before the records are read, so that the last time has all of them
        with delivery.alone() as is_alone:
            while is_alone:
                if delivery.update() or is_last:
                    return delivery.finish()
                is_last = _is_closed(STDIN, PERIOD_S)
        if is_last or _is_closed(STDIN, PERIOD_S):
            return None


def _is_closed(descriptor: int, timeout_s: float = 0.0) -> bool:
    """Wait until the other end of a pipe is closed; return whether it is. Nothing is written to it."""
    return bool(select.select([descriptor], [], [], timeout_s)[0]) and not os.read(descriptor, 1)


class Delivery:
    """The delivery of one execution to one tracker."""

    def __init__(self, tracker: str, folder: Path) -> None:
        self.tracker, self.folder = tracker, folder
        self._reader = Reader(folder)
        self._sink: Sink | None = None
        self._sent: dict[str, str] = {}  # digests by stage

    @contextmanager
    def alone(self) -> Iterator[bool]:
        """Yield whether no other process delivers this execution to this tracker."""
        with (self.folder / f"{self.tracker}.lock").open("a") as lock:
            yield try_lock(lock)

    def update(self) -> bool:
        """Send what is new. Returns whether the execution has ended."""
        runs, have_ended = self._reader.runs()
        for run in runs:
            digest = run.digest()
            if digest in (self._sent.get(run.stage), self._noted(run)):
                continue
            if self._sink is None:
                self._sink = TRACKERS[self.tracker].open()
            self._sink.send(run)
            self._sent[run.stage] = digest
        return have_ended

    def finish(self) -> None:
        """Send what is new, wait until the tracker has it, and note what was delivered."""
        have_ended = self.update()
        if self._sink is not None:
            self._sink.close()
            self._sink = None
        for run in self._reader.runs()[0]:
            if run.ended is not None and self._sent.get(run.stage) == run.digest():
                self._note(run).write_text(run.digest())
        if have_ended:
            (self.folder / delivered_mark(self.tracker)).touch()

    def _note(self, run: Run) -> Path:
        return self.folder / run.stage / f"sent.{self.tracker}"

    def _noted(self, run: Run) -> str:
        try:
            return self._note(run).read_text()
        except FileNotFoundError:
            return ""
