"""Supervise an engine's ranks on this machine: detect a dead or hung rank long before torch's own timeouts (10 to 30
minutes)."""

import json
import signal
import time
from pathlib import Path
from typing import Any

from baton.infra.process.file_lock import lock
from baton.infra.process.hang_diagnosis import Hang, collect_stacks, judge
from baton.infra.process.heartbeat import Beat, rank_file, read_beats
from baton.infra.process.limits import memory_kills
from baton.infra.process.peers import Peers
from baton.infra.process.process_group import kill_group
from baton.infra.process.process_id import is_running

# From the first failure until the other ranks are killed. They have nothing to save, since a checkpoint needs all
# ranks; it gives them time to log, and torchrun to see which one failed first.
END_GRACE_S = 5.0
KILL_WAIT_S = 10.0  # until a killed rank has ended: a process can wait for a disk or a GPU
LONGEST_GAP_S = 5.0  # between two polls; any longer and the machine was suspended, which is no rank's fault


class Supervisor:
    """The state of the ranks, during one start of an engine."""

    def __init__(self, job_dir: Path, ranks: range, hang_timeout_s: float | None, peers: Peers) -> None:
        self.job_dir, self.ranks, self.hang_timeout_s, self.peers = job_dir, ranks, hang_timeout_s, peers
        self.beats: dict[int, Beat] = {}
        self.memory_kills = memory_kills()  # count before this start
        self.progressed = False  # whether a step has been completed
        self.hang: Hang | None = None
        self.dead: list[int] = []  # the ranks that were gone when the first failure was seen
        self.killed: set[int] = set()  # pids killed by this launcher: their exit codes say nothing about the cause
        self._heard: dict[int, float] = {}  # when each rank's newest beat was read
        self._clock = 0.0
        self._looked = time.monotonic()
        self._failed: float | None = None  # when the first failure was seen
        self._before = read_result(job_dir)  # from an earlier start; node 0 removes it when it restarts
        self._forget_earlier()

    def _forget_earlier(self) -> None:
        """Wait until the ranks of an earlier start are gone, and delete their heartbeats."""
        for rank in self.ranks:
            record = rank_file(self.job_dir, rank, "json")
            if record.exists():
                with record.open() as left:
                    lock(left, f"{self.job_dir.name}: waiting for rank {rank} of the previous start to end")
                record.unlink()
            rank_file(self.job_dir, rank, "stacks").unlink(missing_ok=True)

    def look(self) -> bool:
        """Poll the ranks; returns whether the engine may continue. Call it a few times a second."""
        self._tick()
        self._read()
        if self._failed is None and (self._any_failed() or (self.progressed and not self.peers.look())):
            self._failed = self._clock
        if self._failed is not None:
            return self._wait_for_the_end(self._clock - self._failed)
        if self._silent():
            self.hang = self._ask()
        return self.hang is None

    def _wait_for_the_end(self, waited_s: float) -> bool:
        """After a failure, kill ranks that outlive it, so that torchrun exits and reports the first one."""
        if waited_s > END_GRACE_S:
            self.kill_ranks()
        return waited_s < 2 * END_GRACE_S

    def _read(self) -> None:
        for rank, beat in read_beats(self.job_dir, self.ranks).items():
            if beat != self.beats.get(rank):
                self.beats[rank], self._heard[rank] = beat, self._clock
            self.progressed |= beat.began is not None and beat.step > beat.began

    def _tick(self) -> None:
        """Advance our own clock, which stops while the process does (a suspended laptop, a stopped container)."""
        now = time.monotonic()
        self._clock += min(now - self._looked, LONGEST_GAP_S)
        self._looked = now

    def _any_failed(self) -> bool:
        """Return whether a rank is gone before it was done, or has reported an error."""
        dead = [rank for rank, beat in self.beats.items() if not beat.alive]
        self._read()  # a rank reports that it is done before it exits
        self.dead = [rank for rank in dead if self.beats[rank].phase != "done"]
        result = read_result(self.job_dir)
        # another machine's launcher stops its own ranks, and ours then fail by themselves, or peers.py reports it
        return bool(self.dead) or (result != self._before and "error" in result and result.get("rank", 0) in self.ranks)

    def _silent(self) -> bool:
        """Return whether no rank has sent a heartbeat in time. Ranks that wait for a slow one are silent too, but don't
        hang as long as the slow one sends heartbeats."""
        heard = [self._heard[rank] for rank, beat in self.beats.items() if beat.judged]
        return bool(heard and self.hang_timeout_s and max(heard) + self.hang_timeout_s < self._clock)

    def _ask(self) -> Hang:
        at_work = {rank: beat for rank, beat in self.beats.items() if beat.judged}
        absent = [rank for rank in self.ranks if rank not in self.beats or self.beats[rank].phase is None]
        silent_s = self._clock - max(self._heard[rank] for rank in at_work)
        return judge(at_work, collect_stacks(self.job_dir, at_work), absent, silent_s)

    def kill_ranks(self) -> None:
        """Kill the ranks and their children: each rank leads its own session, outside torchrun's group. Returns when
        they have ended, since the next process needs the memory of their GPUs."""
        self._read()
        for beat in self.beats.values():
            if beat.alive:
                self.killed.add(beat.pid)
            kill_group(beat.pid, signal.SIGKILL, beat.started)
        deadline = time.monotonic() + KILL_WAIT_S
        while any(is_running(beat.pid, beat.started) for beat in self.beats.values()) and time.monotonic() < deadline:
            time.sleep(0.01)


def read_result(job_dir: Path) -> dict[str, Any]:
    """Return the content of result.json; empty if there is none."""
    try:
        return dict(json.loads((job_dir / "result.json").read_text()))
    except FileNotFoundError:
        return {}
