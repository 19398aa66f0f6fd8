"""Start a program in a group of its own, and end it with all processes of the group, and nothing else.

A program that `start_group` has started leads a process group. The group lasts while any process is in it, even after
its leader has ended. Only then may the kernel give its number to another process.
"""

import os
import signal
import subprocess
from collections.abc import Collection, Mapping, Sequence
from typing import IO, Any

from baton.infra.process.parent_watchdog import LAUNCHED
from baton.infra.process.process_id import UNKNOWN, start_time


def start_group(
    command: Sequence[str], log: IO[bytes], environment: Mapping[str, str], pass_fds: Collection[int] = ()
) -> subprocess.Popen[bytes]:
    """Start a program that leads a group, with its output in `log`. Its standard input is a pipe from this process: one
    that calls `end_with_launcher` (parent_watchdog.py) ends with this process, however this process ends."""
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        pass_fds=pass_fds,
        env={**environment, **LAUNCHED},
    )


def kill_group(pid: int, signum: signal.Signals, started: int = UNKNOWN) -> None:
    """Signal all processes of the group that this process leads or led."""
    now = start_time(pid)
    if now is not None and started not in (now, UNKNOWN):
        return  # another process has the pid, so the group has ended
    try:
        os.killpg(pid, signum)
    except ProcessLookupError:
        pass  # usually nothing is left


def stop_group(process: subprocess.Popen[Any], grace_s: float = 0.0) -> None:
    """End a program and its group, or the rest of the group if the program has ended, by SIGTERM, and by SIGKILL after
    `grace_s`. Closes the program's standard input."""
    try:
        if grace_s and process.poll() is None:
            kill_group(process.pid, signal.SIGTERM)
            process.wait(grace_s)
    except subprocess.TimeoutExpired:
        pass  # killed below
    finally:
        if process.poll() is None or start_time(process.pid) is None:  # else another process has its pid by now
            kill_group(process.pid, signal.SIGKILL)
        process.wait()
        if process.stdin:
            process.stdin.close()
