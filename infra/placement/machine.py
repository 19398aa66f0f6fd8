"""Coordinate the machines of a job through its storage: count faults, and end all machines when the stage fails on one.

SkyPilot does not count restarts, and would restart forever. Of several machines, the first exits last, with the code of
the stage that failed first on any of them, and the others exit with 0: if another exited with its own code, Slurm would
end the rest with SIGTERM and report 143 for all of them, and Ray would kill them before they have saved anything.

    STORAGE/placed/<attempt>/            one job, on all machines that it has been on
        faults/1, faults/2, …            the counted faults
        hello/<start>                    a machine, except the first, has started; `start` is unique
        answer/<start>                   the first machine's answer: the name of the round, its own `start`
        <round>/<rank>-<code>-<time>     the stage has ended on a machine; 0 if another failure has stopped it
        <round>/failed                   the stage has failed on one machine: the others stop

After a recovery, the round has another name, so that it sees nothing of the previous one. On the job's
machines, job.py's script runs `python3 -m baton.infra.placement.machine CODE` after the stage has ended with that
code, and exits with the code of this process.
"""

import contextvars
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from baton.infra.placement.config import MACHINE_FAULT
from baton.infra.progress import say
from baton.infra.storage import buckets
from baton.infra.storage.buckets import StorageError, storage_of

# in the environment of a job's machines
ATTEMPT, NODES, RESTARTS, START = "BATON_ATTEMPT", "BATON_NODES", "BATON_RESTARTS", "BATON_START"
POLL_S = 2.0
STOP_S = 60.0  # for a stage to save and end after SIGTERM
WAIT_S = 2 * STOP_S  # for the other machines


@dataclass(frozen=True)
class Machine:
    """One of a job's machines in one round, which lasts from a launch to the next recovery. `folder`: the job's folder
    in storage. `start`: the machine's own name in this round; the first machine's name is that of the round."""

    folder: str
    rank: int
    nodes: int
    restarts: int
    start: str

    def round(self) -> str | None:
        """The round's name, or None if the first machine has not answered yet. Raises StorageError."""
        return self.start if self.rank == 0 else self._content(f"answer/{self.start}")

    def join(self) -> None:
        """Ask the first machine which round this is. Raises StorageError."""
        if self.rank:
            self._write(f"hello/{self.start}")

    def has_failed(self) -> bool:
        """Return whether the stage has failed on any machine. The first machine reads what the others have written, and
        answers them; each of the others reads one file, however many there are. Raises StorageError."""
        if self.rank == 0:
            return bool(self._failures(self._names()))
        round = self.round()
        return round is not None and self._content(f"{round}/failed") is not None

    def note_end(self, code: int) -> None:
        """Record the code with which this machine's stage has ended, or 0 if another machine's failure stopped it.
        Raises StorageError."""
        deadline = time.monotonic() + WAIT_S
        while (round := self.round()) is None:
            if code == 0 or time.monotonic() > deadline:
                return  # the first machine has ended, or was lost
            time.sleep(POLL_S)
        cause = 0 if self.has_failed() else code
        self._write(f"{round}/{self.rank}-{cause}-{time.time():.3f}")

    def first_failure(self) -> int:
        """The code with which the stage has failed first on any machine, once it has ended on all; 0 if it has failed
        on none so far. Raises StorageError."""
        deadline = time.monotonic() + WAIT_S
        while failures := self._failures(names := self._names()):
            if len(self._ends(names)) >= self.nodes or time.monotonic() > deadline:
                return min(failures)[1]
            time.sleep(POLL_S)
        return 0

    def restarts_left(self) -> int:
        """The number of restarts left. Raises StorageError."""
        return self.restarts - len(_files(f"{self.folder}/faults"))

    def final_code(self, code: int) -> int:
        """The job's exit code after its stage has ended with `code`; a fault of the machine is counted. `timeout` exits
        with 124, and a process killed by a signal with more than 128. Raises StorageError."""
        if code != MACHINE_FAULT and code <= 128:
            return code
        if (left := self.restarts_left()) <= 0:
            say(f"The stage ended with code {code}. placement.restarts allows {self.restarts}, and all have been used")
            return 1
        self._write(f"faults/{self.restarts - left + 1}")
        return MACHINE_FAULT

    def _names(self) -> set[str]:
        """List all files of the job, after answering the machines that have said hello."""
        names = _files(self.folder)
        for other in (name.partition("/")[2] for name in names if name.startswith("hello/")):
            if f"answer/{other}" not in names:
                self._write(f"answer/{other}", self.start)
        return names

    def _failures(self, names: set[str]) -> list[tuple[float, int]]:
        """The times and codes with which the stage has failed on machines of this round; informs the others."""
        failures = [(at, code) for at, code in self._ends(names) if code]
        if failures and f"{self.start}/failed" not in names:
            self._write(f"{self.start}/failed")
        return failures

    def _ends(self, names: set[str]) -> list[tuple[float, int]]:
        """The times and codes with which the stage has ended on machines of this round."""
        files = [name.split("/")[1] for name in names if name.startswith(f"{self.start}/")]
        ends = [name.split("-") for name in files if name != "failed"]
        return [(float(at), int(code)) for _rank, code, at in ends]

    def _write(self, name: str, content: str = "") -> None:
        buckets.write(f"{self.folder}/{name}", (content or time.strftime("%Y-%m-%d %H:%M:%S")).encode())

    def _content(self, name: str) -> str | None:
        try:
            return buckets.read(f"{self.folder}/{name}").decode()
        except FileNotFoundError:
            return None


def _files(place: str) -> set[str]:
    """The files under a place, without those that are being written."""
    return {name for name in buckets.sizes(place) if not name.endswith(".partial")}


def this_machine() -> Machine:
    """This machine, from the environment that job.py sets."""
    name = os.environ
    folder = f"{storage_of(None)}/placed/{name[ATTEMPT]}"
    return Machine(folder, int(name["NODE_RANK"]), int(name[NODES]), int(name[RESTARTS]), name[START])


def may_restart() -> bool:
    """Return whether the job may be restarted after one more fault of a machine."""
    try:
        return this_machine().restarts_left() > 0
    except StorageError as error:
        say(f"not restarted, since faults cannot be counted: {error}")
        return False


@contextmanager
def ending_together() -> Iterator[None]:
    """End this process, with time to save, once the stage has failed on another machine of the job."""
    machine = this_machine()
    ended = threading.Event()
    context = contextvars.copy_context()  # Flyte's: it has the credentials
    if machine.nodes > 1:
        threading.Thread(target=context.run, args=(_watch, machine, ended), name="machines", daemon=True).start()
    try:
        yield
    finally:
        ended.set()


def _watch(machine: Machine, ended: threading.Event) -> None:
    joined = False
    while not ended.wait(POLL_S):
        try:
            if not joined:
                machine.join()
                joined = True
            failed = machine.has_failed()
        except StorageError as error:
            say(f"{error}\nThe stage continues; until this can be read, it does not see failures of other machines.")
            continue
        if failed and not ended.is_set():
            say("The stage has failed on another machine; stopping it here")
            os.kill(os.getpid(), signal.SIGTERM)
            if not ended.wait(STOP_S):
                os.kill(os.getpid(), signal.SIGKILL)
            return


def main(code: int) -> int:
    """This machine's exit code, after its stage has ended with `code`."""
    machine = this_machine()
    try:
        if machine.nodes > 1:
            machine.join()
            machine.note_end(code)
            if machine.rank:
                return 0
            code = machine.first_failure() or code
        return machine.final_code(code)
    except StorageError as error:
        say(f"The stage ended with code {code}, and there is no restart, since faults cannot be counted: {error}")
        return min(code, 1) if machine.rank == 0 else 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
