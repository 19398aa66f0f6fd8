"""Locks on open files (flock(2)): the kernel releases one when every process that holds it has ended or closed it."""

import fcntl
from typing import IO, Any

from infra.progress import say


def try_lock(file: int | IO[Any]) -> bool:
    """Lock a file for this process alone, unless another holds it; returns whether it is locked."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def lock(file: int | IO[Any], waiting: str) -> None:
    """Lock a file for this process alone. While another holds it, wait, after printing `waiting`."""
    if not try_lock(file):
        say(waiting)
        fcntl.flock(file, fcntl.LOCK_EX)
