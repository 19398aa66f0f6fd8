"""Allow one run per model at a time: a file lock between processes of this machine and, with an MLflow server, a lease
between machines, a Flyte cluster's pods, a schedule and a person.

Two runs that bypass it still end in one promotion: the champion moves only from the version that the candidate was
compared with (tasks/promote).
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

from baton.infra.flyte.hooks import import_lock
from baton.infra.paths import baton_home
from baton.infra.pod import this_pod
from baton.infra.process.file_lock import lock, try_lock
from baton.infra.progress import say
from baton.infra.tracking.execution import execution_id
from baton.infra.tracking.outage import recoverable
from baton.infra.tracking.sqlite_file import store_file
from baton.infra.tracking.store import tracking_uri
from baton.tasks.core.job import StageError

POLL_S = 10.0  # interval between checks of another run's lease
RENEW_S = 30.0  # interval between renewals of our lease, and the timeout of one


@contextmanager
def exclusive(name: str, on_overlap: Literal["wait", "skip"]) -> Iterator[bool]:
    """Hold the model's lock; False: another run holds it and `on_overlap` is "skip". A process that dies releases
    it."""
    with _locked(name, on_overlap) as acquired:
        if not acquired or store_file(tracking_uri()):
            yield acquired
            return
        with _leased(name, on_overlap) as acquired:
            yield acquired


@contextmanager
def _locked(name: str, on_overlap: str) -> Iterator[bool]:
    folder = baton_home() / "continuous"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{name}.lock").open("w") as file:
        if on_overlap == "skip":
            yield try_lock(file)
        else:
            lock(file, f"{name}: another run is working on this model; waiting for it to end")
            yield True


@contextmanager
def _leased(name: str, on_overlap: str) -> Iterator[bool]:
    """In a pod the execution keeps the lease, because its other pods work on the model (tasks/promote/lease.py)."""
    lease, execution, reported = _lease(), execution_id(), ""
    from baton.tasks.publish.registry import RegistryAway  # loaded by _lease

    with recoverable(RegistryAway):
        while holder := lease.acquire(name, execution):
            if on_overlap == "skip":
                yield False
                return
            if holder != reported:
                say(f"{name}: the execution {holder} is working on this model; waiting for it to end")
                reported = holder
            time.sleep(POLL_S)
    if this_pod():
        yield True
        return
    done = threading.Event()
    threading.Thread(target=_renew, args=(lease, name, execution, done), name="lease", daemon=True).start()
    try:
        yield True
    finally:
        done.set()
        try:
            lease.release(name, execution, RENEW_S)
        except StageError as error:
            say(f"{name}: its lease was not released; it expires in {lease.LEASE_S:g} s ({error})")


def _renew(lease: Any, name: str, execution: str, done: threading.Event) -> None:
    while not done.wait(RENEW_S):
        try:
            if holder := lease.acquire(name, execution, RENEW_S):
                say(f"{name}: the execution {holder} has taken over this model; only the first of the two can promote")
                return
        except StageError as error:
            say(f"{name}: its lease could not be renewed ({error})")


def _lease() -> Any:
    """Imports MLflow."""
    with import_lock():
        from baton.tasks.promote import lease
    return lease
