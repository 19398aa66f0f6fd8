"""Handle a short outage of the tracking store in a pod: retry, then raise an error that Flyte retries."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from baton.infra.flyte.hooks import retried_by_flyte
from baton.infra.pod import this_pod
from baton.infra.tracking.store import TrackingUnreachable, check_reachable

PATIENCE_S = 60.0
PAUSE_S = 2.0


def wait_until_reachable() -> None:
    """Check that the store is reachable; in a pod, for a while. Raises TrackingUnreachable."""
    deadline = time.monotonic() + (PATIENCE_S if this_pod() else 0)
    while True:
        try:
            return check_reachable()
        except TrackingUnreachable:
            if time.monotonic() > deadline:
                raise
            time.sleep(PAUSE_S)


@contextmanager
def recoverable(*more: type[Exception]) -> Iterator[None]:
    """In a pod, raise TrackingUnreachable (or `more`) as an error that Flyte retries."""
    errors: tuple[type[Exception], ...] = (TrackingUnreachable, *more)
    try:
        yield
    except errors as error:
        if this_pod() is None:
            raise
        raise retried_by_flyte(error) from error
