"""An engine's signs of life: each rank writes where it is, its launcher reads it (infra/watch.py).

In the job's `work` folder:
ranks/<rank>.json     the rank's newest Beat, written over at each one
ranks/<rank>.stacks   where its threads stand, when the launcher asks with SIGUSR1
"""

import faulthandler
import fcntl
import json
import os
import signal
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal, get_args

# In the order in which a rank comes by them while it has completed the same number of steps.
Phase = Literal["start", "validation", "checkpoint", "data", "forward-backward", "optimizer", "hand-over", "done"]
PHASES: tuple[Phase, ...] = get_args(Phase)
RECORD_BYTES = 192  # one write within a page: a reader sees the old beat or the new one


@dataclass(frozen=True)
class Beat:
    """Where a rank is."""

    pid: int
    phase: Phase | None  # None: it has not beaten yet, and is not judged
    step: int  # steps completed
    began: int | None  # `step` at the first beat behind "start": more than that means that it got on
    time: float  # Unix seconds, for people: the launcher goes by its own clock

    @property
    def place(self) -> tuple[int, int]:
        """Grows along a run, alike in all ranks."""
        return self.step, PHASES.index(self.phase) if self.phase else -1

    @property
    def judged(self) -> bool:
        """Whether a sign of life is to be expected from this rank. How long one rank copies and digests the
        result at the end, while the others wait, is a matter of its size and not of hang_timeout_s."""
        return self.phase not in (None, "hand-over", "done")

    def __str__(self) -> str:
        return f"step {self.step}, {self.phase}"


class Heartbeat:
    """One rank's end of it. Made when the process starts; the launcher then knows its pid."""

    def __init__(self, job_directory: Path, rank: int) -> None:
        self._record = rank_file(job_directory, rank, "json")
        self._stacks = rank_file(job_directory, rank, "stacks")
        self._record.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(self._record, os.O_WRONLY | os.O_CREAT, 0o644)
        fcntl.flock(self._file, fcntl.LOCK_SH)  # until we are gone, with our sockets and GPU memory
        self._last = Beat(os.getpid(), None, 0, None, time.time())
        self._write(self._last)

    def beat(self, step: int, phase: Phase) -> None:
        """Say that this rank is at work, after `step` completed steps. About 10 µs: one write, no fsync.

        From the first beat on the launcher expects another within its hang_timeout_s."""
        if self._last.phase is None:
            # faulthandler's own handler answers in C: also out of a loop that never lets go of the interpreter
            self._answers = self._stacks.open("w")
            faulthandler.register(signal.SIGUSR1, file=self._answers, all_threads=True)
        began = self._last.began
        if began is None and phase != "start":
            began = step
        self._write(Beat(self._last.pid, phase, step, began, time.time()))

    def end(self) -> None:
        """The rank has done its work and may be gone."""
        self._write(replace(self._last, phase="done", time=time.time()))

    def _write(self, beat: Beat) -> None:
        self._last = beat
        os.pwrite(self._file, json.dumps(asdict(beat)).ljust(RECORD_BYTES - 1).encode() + b"\n", 0)


def rank_file(job_directory: Path, rank: int, suffix: Literal["json", "stacks"]) -> Path:
    return job_directory / "work" / "ranks" / f"{rank}.{suffix}"


def read_beats(job_directory: Path, ranks: Iterable[int]) -> dict[int, Beat]:
    """The newest beat of each rank that has started."""
    beats = {}
    for rank in ranks:
        try:
            beats[rank] = Beat(**json.loads(rank_file(job_directory, rank, "json").read_bytes()))
        except (FileNotFoundError, json.JSONDecodeError):
            continue  # not there yet, or empty still
    return beats
