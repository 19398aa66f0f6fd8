"""Keep the removal of files from a home (`baton gc`) and the decisions of its runs apart.

A run that finds an artifact in a cache relies on the artifact's files. It finds it, and records that it uses it, while
it holds the lock together with other runs; files are removed under the exclusive lock, and never those of a recorded
use (workflows/gc/needs.py).
"""

import fcntl
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from baton.infra.paths import baton_home
from baton.infra.process.file_lock import lock

NAME = "removal.lock"


@contextmanager
def without_removal() -> Iterator[None]:
    """Let no process remove files from this home while the body runs."""
    with (baton_home() / NAME).open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            print("waiting until `baton gc` has removed files", file=sys.stderr, flush=True)
            fcntl.flock(file, fcntl.LOCK_SH)
        yield


@contextmanager
def removal() -> Iterator[None]:
    """Let no run of this home decide which files it uses, and no other process remove files, while the body runs."""
    with (baton_home() / NAME).open("a") as file:
        lock(file, "waiting for another `baton gc`, or for a run that looks for its results")
        yield
