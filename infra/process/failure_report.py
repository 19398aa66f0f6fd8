"""Format an engine's failure, and decide whether a restart may help."""

import re
import shutil
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from baton.infra.pod import this_pod
from baton.infra.process.death import Death, death, unvarying
from baton.infra.process.limits import MIB, memory_kills, memory_limit
from baton.infra.process.logs import LINES, UNWRITTEN, LogReader, tail
from baton.infra.process.supervisor import Supervisor, read_result
from baton.infra.storage.disk_errors import NO_SPACE, disk_refused
from baton.infra.tracking.redact import redact_text

FULL_DISK_BYTES = 1 << 20  # with less free space than this, the message names the disk as a cause too
TERMINATED = {-signal.SIGTERM, 128 + signal.SIGTERM}  # exit codes of ranks that torchrun ended
HINTS: dict[int, str] = {
    signal.SIGKILL: " (out of memory? If so, `dmesg` shows it)",
    signal.SIGBUS: " (is /dev/shm full? In a pod it has 64 MB unless pod.resources.shared_memory says otherwise)",
}
# signals that are never the consequence of another rank's failure
ROOT_CAUSE_SIGNALS = {signal.SIGKILL, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE}

NO_GPU_MEMORY = re.compile(r"\b(CUDA|HIP) out of memory")
SMALLER = (
    "the GPU's memory is full: lower layout.micro_batch, recompute activations, or use more or larger GPUs "
    "(`baton plan RECIPE` estimates the memory)"
)
RANK_PREFIX = re.compile(r"^\[rank\d+\]: ")

# torchrun's message about the rank that it saw fail first, and its table of all failed ranks
FIRST = re.compile(r"failed \(exitcode: -?\d+\) local_rank: \d+ \(pid: (\d+)\)")
FAILED = re.compile(r"^ *rank +: (\d+) \(local_rank: \d+\)\n *exitcode +: (-?\d+) \(pid: (\d+)\)", re.MULTILINE)


@dataclass(frozen=True)
class Failure:
    """The failure of one start of an engine."""

    summary: str  # one line: "pretrain: rank 3 was killed by SIGKILL at step 12, data"
    details: str  # the last lines of the log, and the place of the others
    curable: bool  # a restart may help; False: the user must change something
    memory_mib: int | None = None  # the limit at which it was killed for memory
    death: Death | None = None  # set for a failure that may recur at the same step


@dataclass(frozen=True)
class _Failed:
    """A rank that torchrun saw fail."""

    rank: int
    exit_code: int  # negative: the signal that killed it
    pid: int


def diagnose(title: str, job_dir: Path, returncode: int, supervisor: Supervisor, logs: LogReader) -> Failure:
    """Examine what an engine left, after its last process has ended."""
    result = read_result(job_dir)
    folder, log = f"  Folder: {job_dir}", f"\n  (log: {job_dir / 'log.txt'})"
    if this_pod():  # its disk is lost with it; the pod's log has the end of the engine's log
        folder = log = ""
    first = _first(logs.torchrun_log(), supervisor.killed)
    if memory_kills() > supervisor.memory_kills and (limit := memory_limit()):
        mib = limit // MIB
        return Failure(f"{title}: killed for memory at {mib:,} MiB, the limit here", log, False, mib)
    full = shutil.disk_usage(job_dir).free < FULL_DISK_BYTES
    line = _error_line(NO_SPACE, result, logs, first)
    raised = "error" not in result and not supervisor.hang and (first.exit_code if first else returncode) > 0
    if line or (full and raised):  # the log, which is on that disk, may lack its end
        refused = disk_refused("no space left on device", str(job_dir), full=True, folder=job_dir)
        return Failure(f"{title}: {refused.message}", f"\n  {line}{log}" if line else log, curable=False)
    if line := _error_line(NO_GPU_MEMORY, result, logs, first):
        return Failure(f"{title}: {SMALLER}", f"\n  {line}{log}", curable=False)
    if "error" in result and "traceback" not in result:  # an error for the user, or an unreachable storage
        return Failure(f"{title}: {result['error']}", log, result.get("curable", False))
    disk = f"; the disk of {job_dir} is full" if full else ""

    def failure(summary: str, way: str, details: str) -> Failure:
        steps = [beat.step for beat in supervisor.beats.values() if beat.phase]
        return Failure(f"{summary}{disk}", f"{details}{folder}", not full, death=death(steps, way, summary))

    if supervisor.hang:
        lines = f"{supervisor.hang.stacks}  {_last_lines(logs.rank_log(supervisor.hang.ranks[0]))}"
        return failure(f"{title}: {supervisor.hang.summary}", "hangs", f".\n{lines}")
    if (rank := supervisor.peers.restarted) is not None:
        return failure(f"{title}: rank {rank}, on another machine, ended", "ended on another machine", ".\n")
    if "traceback" in result and (first is None or first.exit_code == 1):  # a bug, of the rank that reported first
        who = f"{title}: rank {result['rank']}" if "rank" in result else title
        error = f"{result['kind']}: {result['error']}"
        return failure(f"{who}: {error}", unvarying(error), f"\n{tail(result['traceback'])}")
    if first is not None:
        rank, way = first.rank, _exit(first.exit_code)
    elif supervisor.dead and supervisor.killed:  # not seen by torchrun
        rank, way = supervisor.dead[0], "died"
    else:
        way = _exit(returncode)
        return failure(f"{title} {way}", way, f". {_last_lines(logs.torchrun_log())}")
    beat = supervisor.beats.get(rank)
    at = f" at {beat}" if beat and beat.phase else ""
    return failure(f"{title}: rank {rank} {way}{at}", way, f". {_last_lines(logs.rank_log(rank))}")


def _first(torchrun: str, killed: set[int]) -> _Failed | None:
    """Return the rank whose failure caused the other failures, among those that torchrun saw fail by themselves."""
    failed = [_Failed(int(rank), int(code), int(pid)) for rank, code, pid in FAILED.findall(torchrun)]
    by_themselves = [rank for rank in failed if rank.pid not in killed and rank.exit_code not in TERMINATED]
    seen_first = FIRST.search(torchrun)

    def order(rank: _Failed) -> tuple[bool, bool]:
        """torchrun polls ten times a second, and of two ranks that ended in between it reports the lower as first."""
        return -rank.exit_code not in ROOT_CAUSE_SIGNALS, not (seen_first and int(seen_first[1]) == rank.pid)

    return min(by_themselves, key=order, default=None)


def _error_line(pattern: re.Pattern[str], result: dict[str, Any], logs: LogReader, first: _Failed | None) -> str | None:
    """The line of the engine's error that matches: a traceback would hide it, and result.json may be incomplete."""
    if "error" in result:
        lines = [str(result["error"])] if "traceback" in result or result.get("kind") == "OSError" else []
    else:
        log = (logs.rank_log(first.rank) if first else logs.torchrun_log()).splitlines()
        # an engine closes its files as it ends, so the disk may have had space for the log after this line, and now
        lines = [line for line in log if line.startswith(UNWRITTEN)] + log[-LINES:]
    match = next((line for line in reversed(lines) if pattern.search(line)), None)
    return redact_text(RANK_PREFIX.sub("", match.strip())) if match else None


def _last_lines(text: str) -> str:
    return f"Its last lines:\n{tail(text)}" if text.strip() else "It printed nothing.\n"


def _exit(returncode: int) -> str:
    if returncode == 0:
        return "ended with exit code 0 and without a result, as after sys.exit(0) or os._exit(0)"
    return f"ended with exit code {returncode}" if returncode >= 0 else _killed(-returncode)


def _killed(signum: int) -> str:
    return f"was killed by {signal.Signals(signum).name}{HINTS.get(signum, '')}"
