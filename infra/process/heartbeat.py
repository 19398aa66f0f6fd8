"""An engine's heartbeats: each rank writes its progress, and its launcher reads it (infra/process/supervisor.py).

In the job's `work` folder:
ranks/<rank>.json     the rank's newest Beat, overwritten each time
ranks/<rank>.stacks   its threads' stacks, dumped on the launcher's SIGUSR1
"""

import faulthandler
import fcntl
import json
import os
import signal
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal, get_args

from baton.infra.process.process_id import UNKNOWN, exists, start_time

# In the order in which a rank passes through them between two steps
Phase = Literal[
    "start",
    "validation",
    "checkpoint",
    "data",
    "rollout",
    "rewards",
    "forward-backward",
    "optimizer",
    "hand-over",
    "done",
]
PHASES: tuple[Phase, ...] = get_args(Phase)
RECORD_BYTES = 192  # one write within a page: a reader sees the old beat or the new one


@dataclass(frozen=True)
class Beat:
    """A rank's progress."""

    pid: int
    phase: Phase | None  # None: started, and not expected to send heartbeats yet
    step: int  # steps completed
    began: int | None  # `step` at the first beat after "start": a larger `step` means progress
    time: float  # Unix seconds, informational: the launcher uses its own clock
    started: int = UNKNOWN  # the process's start time (infra/process/process_id.py)

    @property
    def place(self) -> tuple[int, int]:
        """The rank's position in the run, comparable between ranks."""
        return self.step, PHASES.index(self.phase) if self.phase else -1

    @property
    def judged(self) -> bool:
        """True if hang_timeout_s applies to this rank. It does not at the end: how long one rank copies and digests the
        result, while the others wait, depends on the result's size."""
        return self.phase not in (None, "hand-over", "done")

    @property
    def alive(self) -> bool:
        """True if the rank's process exists. A dead process exists until torchrun has reaped it."""
        return exists(self.pid, self.started)

    def __str__(self) -> str:
        return f"step {self.step}, {self.phase}"


class Heartbeat:
    """A rank's heartbeat writer. Create it when the process starts: the launcher then knows its pid."""

    def __init__(self, job_directory: Path, rank: int) -> None:
        self._record = rank_file(job_directory, rank, "json")
        self._stacks = rank_file(job_directory, rank, "stacks")
        self._record.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(self._record, os.O_WRONLY | os.O_CREAT, 0o644)
        fcntl.flock(self._file, fcntl.LOCK_SH)  # held until this process is gone, with its sockets and GPU memory
        self._last = Beat(os.getpid(), None, 0, None, time.time(), start_time(os.getpid()) or UNKNOWN)
        self._write(self._last)

    def beat(self, step: int, phase: Phase) -> None:
        """Report this rank's phase after `step` completed steps. About 10 µs: one write, no fsync.

        From the first beat on, the launcher expects another within its hang_timeout_s."""
        if self._last.phase is None:
            # faulthandler's handler runs in C, even in a loop that never releases the interpreter
            self._answers = self._stacks.open("w")
            faulthandler.register(signal.SIGUSR1, file=self._answers, all_threads=True)
        began = self._last.began
        if began is None and phase != "start":
            began = step
        self._write(replace(self._last, phase=phase, step=step, began=began, time=time.time()))

    def repeat(self) -> None:
        """Report that the rank is alive, in the phase that it reported last; nothing before the first one."""
        if self._last.phase is not None:
            self._write(replace(self._last, time=time.time()))

    @contextmanager
    def repeated(self) -> Iterator[None]:
        """Call `repeat` every second in this context, around work that has its own time limit."""
        over = threading.Event()

        def run() -> None:
            while not over.wait(1):
                self.repeat()

        thread = threading.Thread(target=run, name="heartbeat", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def end(self) -> None:
        """Report that the rank is done and may exit."""
        self._write(replace(self._last, phase="done", time=time.time()))

    def _write(self, beat: Beat) -> None:
        self._last = beat
        os.pwrite(self._file, json.dumps(asdict(beat)).ljust(RECORD_BYTES - 1).encode() + b"\n", 0)


def rank_file(job_directory: Path, rank: int, suffix: Literal["json", "stacks"]) -> Path:
    return job_directory / "work" / "ranks" / f"{rank}.{suffix}"


def read_beats(job_directory: Path, ranks: Iterable[int]) -> dict[int, Beat]:
    """Return the newest beat of each rank that has started."""
    beats = {}
    for rank in ranks:
        try:
            beats[rank] = Beat(**json.loads(rank_file(job_directory, rank, "json").read_bytes()))
        except (FileNotFoundError, json.JSONDecodeError):
            continue  # not written yet
    return beats
