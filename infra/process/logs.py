"""The logs of an engine's processes.

    JOB_DIR/log.txt             torchrun and rank 0; the only log of a single-process engine
    JOB_DIR/log-rank-<N>.txt    every other rank
    JOB_DIR/log-node-<N>.txt    torchrun on every other machine

A log is also a lock, held by the processes that print to it: no new engine starts while one of them is running.
"""

import fcntl
import os
import re
import sys
import threading
import traceback
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType

from baton.infra.text import shown
from baton.infra.tracking.redact import redact_text

LINES = 20  # the end of a log, shown for a failure
LINE = 500  # characters shown of each
READ_BYTES = 1 << 16  # at most, from the end of a log
UNWRITTEN = "result.json could not be written: "  # start of the line of an engine whose disk is full
TORCHRUN_FAILURE = re.compile(
    r"^[WE]\d{4} .*torch/distributed/elastic/.*(?:closing signal|failed \(exitcode)", re.MULTILINE
)


def node_log(job_dir: Path, node: int) -> Path:
    return job_dir / (f"log-node-{node}.txt" if node else "log.txt")


def rank_log(job_dir: Path, rank: int) -> Path:
    return job_dir / (f"log-rank-{rank}.txt" if rank else "log.txt")


def print_to_own_log(job_dir: Path, rank: int) -> None:
    """Redirect this process's and its children's output to the rank's own log."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.dup(1)  # keep the launcher's log open: it is the lock
    with rank_log(job_dir, rank).open("ab") as log:
        fcntl.flock(log, fcntl.LOCK_SH)
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)


def redact_tracebacks() -> None:
    """Print the tracebacks of uncaught exceptions, also in threads, without secrets: the message of an exception often
    has the address of a request or its headers."""

    def show(kind: type[BaseException], error: BaseException | None, trace: TracebackType | None) -> None:
        sys.stderr.write(redact_text("".join(traceback.format_exception(kind, error, trace))))

    def show_in_thread(raised: threading.ExceptHookArgs) -> None:
        if raised.exc_type is not SystemExit:
            show(raised.exc_type, raised.exc_value, raised.exc_traceback)

    sys.excepthook, threading.excepthook = show, show_in_thread


def wait_for_earlier(job_dir: Path, ranks: Iterable[int]) -> None:
    """Wait until no process of an earlier start holds a rank's log."""
    for path in (rank_log(job_dir, rank) for rank in ranks if rank):
        if path.exists():
            with path.open("rb") as log:
                fcntl.flock(log, fcntl.LOCK_EX)


class LogReader:
    """Reads what is printed from now on, without the output of earlier starts."""

    def __init__(self, job_dir: Path, node: int, ranks: Iterable[int]) -> None:
        self._job_dir = job_dir
        self._node_log = node_log(job_dir, node)
        paths = {self._node_log, *(rank_log(job_dir, rank) for rank in ranks)}
        self._starts = {path: path.stat().st_size if path.exists() else 0 for path in paths}

    def torchrun_log(self) -> str:
        """Return the output of torchrun and of processes that share its log."""
        return self._read(self._node_log)

    def rank_log(self, rank: int) -> str:
        """Return the output of a rank, without torchrun's messages about failed ranks."""
        return TORCHRUN_FAILURE.split(self._read(rank_log(self._job_dir, rank)))[0]

    def _read(self, path: Path) -> str:
        return end_of(path, self._starts[path]).decode(errors="replace")


def end_of(path: Path, start: int = 0) -> bytes:
    """Return the last READ_BYTES after `start` of a growing file; empty if the file does not exist."""
    try:
        with path.open("rb") as file:
            file.seek(max(start, os.fstat(file.fileno()).st_size - READ_BYTES))
            return file.read(READ_BYTES)
    except FileNotFoundError:
        return b""


def tail(text: str) -> str:
    """Return the last lines of a text, indented, cut and redacted."""
    return "".join(f"    {shown(line.rstrip(), LINE)}\n" for line in redact_text(text).splitlines()[-LINES:])
