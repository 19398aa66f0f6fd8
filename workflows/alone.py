"""One run at a time for one model: between processes of this machine, and where MLflow has a server also between
machines, a Flyte cluster's pods, a schedule and a person.

And where that is passed by, two runs end in one promotion all the same: the champion moves only from the version that
the candidate was compared with (tasks/promote).
"""

import fcntl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

from infra.home import baton_home
from infra.pod import this_pod
from infra.progress import say
from infra.tracking.away import recoverable
from infra.tracking.execution import execution_id
from infra.tracking.forwarder import flyte_s_import_lock
from infra.tracking.sqlite_file import store_file
from infra.tracking.store import tracking_uri
from tasks.job import StageError

LOOK_S = 10.0  # between two looks at another run's lease
RENEW_S = 30.0  # between two renewals of ours, and how long one may take


@contextmanager
def alone(name: str, on_overlap: Literal["wait", "skip"]) -> Iterator[bool]:
    """Hold the model; False: another run has it and is not waited for. Whoever dies lets go of it."""
    with _locked(name, on_overlap) as free:
        if not free or store_file(tracking_uri()):
            yield free
            return
        with _leased(name, on_overlap) as free:
            yield free


@contextmanager
def _locked(name: str, on_overlap: str) -> Iterator[bool]:
    folder = baton_home() / "continuous"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if on_overlap == "skip":
                yield False
                return
            say(f"{name}: another run is at work on this model; waiting for it to end")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield True


@contextmanager
def _leased(name: str, on_overlap: str) -> Iterator[bool]:
    """In a pod the execution keeps the lease: its other pods are at work on the model (tasks/promote/lease.py)."""
    lease, execution, told = _lease(), execution_id(), ""
    with recoverable(lease.RegistryAway):
        while holder := lease.take(name, execution):
            if on_overlap == "skip":
                yield False
                return
            if holder != told:
                say(f"{name}: the execution {holder} is at work on this model; waiting for it to end")
                told = holder
            time.sleep(LOOK_S)
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
            say(f"{name}: its lease was not given back, and ends by itself in {lease.LEASE_S:g} s ({error})")


def _renew(lease: Any, name: str, execution: str, done: threading.Event) -> None:
    while not done.wait(RENEW_S):
        try:
            if holder := lease.take(name, execution, RENEW_S):
                say(f"{name}: the execution {holder} has taken this model over: of both, the first to promote does")
                return
        except StageError as error:
            say(f"{name}: its lease could not be renewed ({error})")


def _lease() -> Any:
    """Imports MLflow."""
    with flyte_s_import_lock():
        from tasks.promote import lease
    return lease
