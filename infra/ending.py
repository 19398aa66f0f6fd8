"""What became of an engine that left no artifact, in words; and whether another start may cure it."""

import re
import shutil
import signal
from dataclasses import dataclass
from pathlib import Path

from infra.logs import Printed, tail
from infra.watch import Watch, read_result

FULL_DISK_BYTES = 1 << 20  # with less than this left, a failure is blamed on the disk too
TOLD_TO_END = {-signal.SIGTERM, 128 + signal.SIGTERM}  # exit codes of ranks that torchrun ended
# what a rank does not come to because another one ended
NEVER_AN_EFFECT = {signal.SIGKILL, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE}

# torchrun's word on the rank that it saw fail first, and its table of all that failed
FIRST = re.compile(r"failed \(exitcode: -?\d+\) local_rank: \d+ \(pid: (\d+)\)")
FAILED = re.compile(r"^ *rank +: (\d+) \(local_rank: \d+\)\n *exitcode +: (-?\d+) \(pid: (\d+)\)", re.MULTILINE)


@dataclass(frozen=True)
class Ending:
    """How one start of an engine ended."""

    how: str  # "pretrain: rank 3 was killed by SIGKILL at step 12, data", on one line
    details: str  # its last lines, and where to find more
    curable: bool  # by another start; not so what a person must change


@dataclass(frozen=True)
class _Failed:
    """A rank that torchrun saw fail."""

    rank: int
    exit_code: int  # negative: the signal that killed it
    pid: int


def ending(title: str, job_dir: Path, returncode: int, watch: Watch, printed: Printed) -> Ending:
    """Look at what an engine left, after its last process ended."""
    result = read_result(job_dir)
    folder = f"  Folder: {job_dir}"
    if "error" in result and "traceback" not in result:  # for a person, who alone can change it; or the storage is away
        curable = result.get("curable", False)
        return Ending(f"{title}: {result['error']}", f"\n  (log: {job_dir / 'log.txt'})", curable)
    full = shutil.disk_usage(job_dir).free < FULL_DISK_BYTES
    disk = f"; the disk of {job_dir} is full" if full else ""
    if watch.hang:
        lines = f"{watch.hang.stands}  {_said(printed.by_rank(watch.hang.ranks[0]))}"
        return Ending(f"{title}: {watch.hang.how}{disk}", f".\n{lines}{folder}", not full)
    first = _first(printed.by_torchrun(), watch.killed)
    if "traceback" in result and (first is None or first.exit_code == 1):  # a bug, and who was first to say so
        who = f"{title}: rank {result['rank']}" if "rank" in result else title
        how = f"{who}: {result['kind']}: {result['error']}{disk}"
        return Ending(how, f"\n{tail(result['traceback'])}{folder}", not full)
    if first is not None:
        how, rank = f"{title}: rank {first.rank} {_exit(first.exit_code)}", first.rank
    elif watch.gone and watch.killed:  # torchrun did not see it
        how, rank = f"{title}: rank {watch.gone[0]} died", watch.gone[0]
    else:
        return Ending(f"{title} {_exit(returncode)}{disk}", f". {_said(printed.by_torchrun())}{folder}", not full)
    beat = watch.beats.get(rank)
    at = f" at {beat}" if beat and beat.phase else ""
    return Ending(f"{how}{at}{disk}", f". {_said(printed.by_rank(rank))}{folder}", not full)


def _first(torchrun: str, killed: set[int]) -> _Failed | None:
    """The rank whose failure made the others fail, of those that torchrun saw fail by themselves."""
    failed = [_Failed(int(rank), int(code), int(pid)) for rank, code, pid in FAILED.findall(torchrun)]
    by_themselves = [each for each in failed if each.pid not in killed and each.exit_code not in TOLD_TO_END]
    seen_first = FIRST.search(torchrun)

    def order(each: _Failed) -> tuple[bool, bool]:
        """torchrun looks ten times a second, and of two that ended since it takes the lower rank for the first."""
        return -each.exit_code not in NEVER_AN_EFFECT, not (seen_first and int(seen_first[1]) == each.pid)

    return min(by_themselves, key=order, default=None)


def _said(text: str) -> str:
    return f"Its last lines:\n{tail(text)}" if text.strip() else "It printed nothing.\n"


def _exit(returncode: int) -> str:
    return f"ended with exit code {returncode}" if returncode >= 0 else _killed(-returncode)


def _killed(signum: int) -> str:
    hint = " (out of memory? `dmesg` says so if it was)" if signum == signal.SIGKILL else ""
    return f"was killed by {signal.Signals(signum).name}{hint}"
