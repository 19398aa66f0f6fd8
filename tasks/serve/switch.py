"""Select the backend of the next request, and count the requests in flight at each."""

from dataclasses import dataclass, field
from datetime import UTC, datetime
from threading import Lock
from typing import Any


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


@dataclass
class Backend:
    """A server behind the proxy."""

    url: str
    digest: str  # the model's
    version: int | None = None  # in the registry
    requests: int = 0  # in flight
    since: str = field(default_factory=now)
    key: str = field(default="", repr=False)  # sent in place of the client's key; empty: the client's key is sent


class Switch:
    """The current backend. Its selection and the count of a request are one atomic step, so a backend that is no longer
    current and has no requests gets no more."""

    def __init__(self) -> None:
        self.current: Backend | None = None
        self.status: dict[str, Any] = {}  # further fields of /baton's response
        self._lock = Lock()

    def acquire(self) -> Backend | None:
        """Return the current backend for a new request, to be given back after its response."""
        with self._lock:
            if self.current:
                self.current.requests += 1
            return self.current

    def release(self, backend: Backend) -> None:
        with self._lock:
            backend.requests -= 1

    def turn(self, backend: Backend | None) -> Backend | None:
        """Send all new requests to `backend`; returns the previous one."""
        with self._lock:
            before, self.current = self.current, backend
            return before
