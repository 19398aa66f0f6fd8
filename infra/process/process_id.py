"""Identify a process even if its pid is reused after its end: by its start time, and across machines and containers by
their boot and PID namespace."""

import os
import platform
from pathlib import Path
from uuid import uuid4

UNKNOWN = 0  # a start time


def start_time(pid: int) -> int | None:
    """Return when the process was started, in clock ticks since the boot (proc(5)), or None if it does not exist."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return int(stat.rpartition(")")[2].split()[19])


def exists(pid: int, started: int) -> bool:
    """Return whether the process with this pid and start time exists: even an ended one does until it is reaped."""
    now = start_time(pid)
    return now is not None and started in (now, UNKNOWN)


def is_running(pid: int, started: int) -> bool:
    """Return whether the process with this pid and start time has not ended."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX" and exists(pid, started)


def this_process() -> str:
    """Return an identifier of this process that is unique everywhere: "PID HOST PIDS STARTED"."""
    return f"{os.getpid()} {platform.node()} {_pids()} {start_time(os.getpid())}"


def has_ended(process: str) -> bool | None:
    """Return whether a process that `this_process` identifies has ended, or None if that cannot be known here."""
    try:
        pid, _, pids, started = process.split()
        return None if pids != _pids() else not exists(int(pid), int(started))
    except ValueError:  # not written by Baton
        return None


def _pids() -> str:
    """Return an identifier of the boot and the PID namespace, which give this process's pids their meaning."""
    try:
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()}/{Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return uuid4().hex  # unlike any other
