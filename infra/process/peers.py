"""Follow the other machines of a run, by their ranks' heartbeats in the job's folder if the machines share it, else by
torch's store on the first one.

A launcher supervises the ranks of its own machine. When they wait for a rank of another machine that has ended, in a
collective or at torch's store, they may not notice; but the launcher that restarts it removes its heartbeats first,
which is detected here. A restarted rank must not meet the ranks of the previous start, so launchers wait for each
other in between.
"""

import socket
import time
from pathlib import Path

from baton.infra.process.heartbeat import Beat, read_beats
from baton.infra.progress import say

LOOK_S = 5.0  # interval between reads of the other machines' heartbeats, perhaps on a network file system
CONNECT_S = 2.0  # the launcher does nothing else meanwhile
STOP_S = 120.0  # for every launcher to detect that one restarts its engine, and to stop its own


class Peers:
    """The other machines, during one start of an engine. `ranks`: one of each machine."""

    def __init__(self, job_dir: Path, ranks: list[int]) -> None:
        self.job_dir, self.ranks = job_dir, ranks
        self.restarted: int | None = None  # a rank that was at work and no longer is
        self._at_work: set[int] = set()
        self._next = 0.0

    def look(self) -> bool:
        """Return whether all other machines still take part. Call it only after a step: by then all were at work."""
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + LOOK_S
            at_work = {rank for rank, beat in read_beats(self.job_dir, self.ranks).items() if is_at_work(beat)}
            self.restarted = min(self._at_work - at_work, default=None)
            self._at_work |= at_work
        return self.restarted is None

    def wait_until_stopped(self, timeout_s: float = STOP_S) -> int | None:
        """Wait for the end of the previous start on every machine; returns a rank that has not ended by then."""
        end, announced = time.monotonic() + timeout_s, False
        while at_work := [rank for rank, beat in read_beats(self.job_dir, self.ranks).items() if is_at_work(beat)]:
            if time.monotonic() > end:
                return at_work[0]
            if not announced:
                say(f"{self.job_dir.name}: waiting for rank {at_work[0]}, on another machine, to stop")
                announced = True
            time.sleep(0.2)
        return None


class FirstNode(Peers):
    """The first machine, as seen by another that shares no folder with it. Its torchrun hosts torch's store, and ends
    with the engine there. The first machine detects the end of another in its collectives or by hang_timeout_s."""

    def __init__(self, address: str, port: int) -> None:
        super().__init__(Path(), [])
        self._store = address, port

    def look(self) -> bool:
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + LOOK_S
            try:
                socket.create_connection(self._store, timeout=CONNECT_S).close()
            except ConnectionRefusedError:
                self.restarted = 0
            except OSError:
                pass  # the machine does not answer, which torch's own connections will report
        return self.restarted is None


def is_at_work(beat: Beat) -> bool:
    """Return whether the rank is past its start, which no rank completes without the others."""
    return beat.began is not None
