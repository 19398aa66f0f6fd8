"""A store that is away for a moment, in a pod: waited for, and then an error that Flyte may retry."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from infra.pod import this_pod
from infra.tracking.store import TrackingUnreachable

T = TypeVar("T")

PATIENCE_S = 60.0
PAUSE_S = 2.0


def patiently(question: Callable[[], T]) -> T:
    """Its answer; in a pod a store that cannot be reached is asked again for a while. Raises TrackingUnreachable."""
    deadline = time.monotonic() + (PATIENCE_S if this_pod() else 0)
    while True:
        try:
            return question()
        except TrackingUnreachable:
            if time.monotonic() > deadline:
                raise
            time.sleep(PAUSE_S)


@contextmanager
def recoverable(*more: type[Exception]) -> Iterator[None]:
    """In a pod, a store that cannot be reached (or `more`) is an error after which Flyte may try again."""
    passing: tuple[type[Exception], ...] = (TrackingUnreachable, *more)
    try:
        yield
    except passing as error:
        if this_pod() is None:
            raise
        from flytekit.exceptions.user import FlyteRecoverableException

        raise FlyteRecoverableException(str(error)) from error
