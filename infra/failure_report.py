"""Format an engine's failure, and tell whether a restart may help."""

import re
import shutil
import signal
from dataclasses import dataclass
from pathlib import Path

from infra.logs import LogReader, tail
from infra.supervisor import Supervisor, read_result

FULL_DISK_BYTES = 1 << 20  # with less free space than this, the message names the disk as a cause too
TERMINATED = {-signal.SIGTERM, 128 + signal.SIGTERM}  # exit codes of ranks that torchrun ended
# signals that are never the consequence of another rank's failure
NEVER_AN_EFFECT = {signal.SIGKILL, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE}

# torchrun's message about the rank that it saw fail first, and its table of all failed ranks
FIRST = re.compile(r"failed \(exitcode: -?\d+\) local_rank: \d+ \(pid: (\d+)\)")
FAILED = re.compile(r"^ *rank +: (\d+) \(local_rank: \d+\)\n *exitcode +: (-?\d+) \(pid: (\d+)\)", re.MULTILINE)


@dataclass(frozen=True)
class Failure:
    """The failure of one start of an engine."""

    how: str  # one line: "pretrain: rank 3 was killed by SIGKILL at step 12, data"
    details: str  # its last lines, and where to find more
    curable: bool  # a restart may help; False: the user must change something


@dataclass(frozen=True)
class _Failed:
    """A rank that torchrun saw fail."""

    rank: int
    exit_code: int  # negative: the signal that killed it
    pid: int


def diagnose(title: str, job_dir: Path, returncode: int, supervisor: Supervisor, logs: LogReader) -> Failure:
    """Examine what an engine left, after its last process has ended."""
    result = read_result(job_dir)
    folder = f"  Folder: {job_dir}"
    if "error" in result and "traceback" not in result:  # an error for the user, or an unreachable storage
        curable = result.get("curable", False)
        return Failure(f"{title}: {result['error']}", f"\n  (log: {job_dir / 'log.txt'})", curable)
    full = shutil.disk_usage(job_dir).free < FULL_DISK_BYTES
    disk = f"; the disk of {job_dir} is full" if full else ""
    if supervisor.hang:
        lines = f"{supervisor.hang.stacks}  {_last_words(logs.rank_log(supervisor.hang.ranks[0]))}"
        return Failure(f"{title}: {supervisor.hang.how}{disk}", f".\n{lines}{folder}", not full)
    if (rank := supervisor.peers.restarted) is not None:
        return Failure(f"{title}: rank {rank}, on another machine, ended{disk}", f".\n{folder}", not full)
    first = _first(logs.torchrun_log(), supervisor.killed)
    if "traceback" in result and (first is None or first.exit_code == 1):  # a bug, of the rank that reported first
        who = f"{title}: rank {result['rank']}" if "rank" in result else title
        how = f"{who}: {result['kind']}: {result['error']}{disk}"
        return Failure(how, f"\n{tail(result['traceback'])}{folder}", not full)
    if first is not None:
        how, rank = f"{title}: rank {first.rank} {_exit(first.exit_code)}", first.rank
    elif supervisor.dead and supervisor.killed:  # not seen by torchrun
        how, rank = f"{title}: rank {supervisor.dead[0]} died", supervisor.dead[0]
    else:
        return Failure(f"{title} {_exit(returncode)}{disk}", f". {_last_words(logs.torchrun_log())}{folder}", not full)
    beat = supervisor.beats.get(rank)
    at = f" at {beat}" if beat and beat.phase else ""
    return Failure(f"{how}{at}{disk}", f". {_last_words(logs.rank_log(rank))}{folder}", not full)


def _first(torchrun: str, killed: set[int]) -> _Failed | None:
    """The rank whose failure caused the others', among those that torchrun saw fail by themselves."""
    failed = [_Failed(int(rank), int(code), int(pid)) for rank, code, pid in FAILED.findall(torchrun)]
    by_themselves = [rank for rank in failed if rank.pid not in killed and rank.exit_code not in TERMINATED]
    seen_first = FIRST.search(torchrun)

    def order(rank: _Failed) -> tuple[bool, bool]:
        """torchrun polls ten times a second, and of two ranks that ended in between it reports the lower as first."""
        return -rank.exit_code not in NEVER_AN_EFFECT, not (seen_first and int(seen_first[1]) == rank.pid)

    return min(by_themselves, key=order, default=None)


def _last_words(text: str) -> str:
    return f"Its last lines:\n{tail(text)}" if text.strip() else "It printed nothing.\n"


def _exit(returncode: int) -> str:
    return f"ended with exit code {returncode}" if returncode >= 0 else _killed(-returncode)


def _killed(signum: int) -> str:
    hint = " (out of memory? `dmesg` says so if it was)" if signum == signal.SIGKILL else ""
    return f"was killed by {signal.Signals(signum).name}{hint}"
