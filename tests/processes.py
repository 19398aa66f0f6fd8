"""Processes that may end while a test looks at them or kills them."""

from collections.abc import Iterable
from contextlib import suppress

import psutil


def commands(processes: Iterable[psutil.Process]) -> dict[psutil.Process, list[str]]:
    """The command lines of those that still run; a zombie has none."""
    running = {}
    for process in processes:
        with suppress(psutil.NoSuchProcess):  # psutil's error for a zombie is one of these
            if command := process.cmdline():
                running[process] = command
    return running


def kill_tree(pid: int) -> None:
    """kill -9 a process and all that it has started, in whichever session; at once as far as that is possible."""
    with suppress(psutil.NoSuchProcess):
        top = psutil.Process(pid)
        top.suspend()  # it starts no more of them
        for process in [*top.children(recursive=True), top]:
            with suppress(psutil.NoSuchProcess):
                process.kill()
