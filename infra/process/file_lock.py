"""Locks on open files (flock(2)): the kernel releases one when every process that holds it has ended or closed it."""

import fcntl
import sys
from typing import IO, Any


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
        print(waiting, file=sys.stderr, flush=True)  # not by infra/progress.py: MLflow's image has no rich
        fcntl.flock(file, fcntl.LOCK_EX)
