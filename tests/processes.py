"""Processes that may end while a test inspects or kills them."""

from collections.abc import Iterable
from contextlib import suppress

import psutil


def commands(processes: Iterable[psutil.Process]) -> dict[psutil.Process, list[str]]:
    """Return the command lines of the processes that still run; a zombie has none."""
    running = {}
    for process in processes:
        with suppress(psutil.NoSuchProcess):  # the base class of psutil's error for a zombie
            if command := process.cmdline():
                running[process] = command
    return running


def kill_tree(pid: int) -> None:
    """Kill a process and all its descendants, in any session, as simultaneously as possible."""
    with suppress(psutil.NoSuchProcess):
        top = psutil.Process(pid)
        top.suspend()  # a suspended process cannot start more of them
        for process in [*top.children(recursive=True), top]:
            with suppress(psutil.NoSuchProcess):
                process.kill()
