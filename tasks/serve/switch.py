"""Which backend gets the next request, and how many requests each one is answering."""

from dataclasses import dataclass, field
from datetime import UTC, datetime
from threading import Lock
from typing import Any


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


@dataclass
class Backend:
    """A server that may get requests."""

    url: str
    digest: str  # of its model
    version: int | None = None  # in the registry
    requests: int = 0  # that it is answering
    since: str = field(default_factory=now)


class Switch:
    """A request takes its backend and is counted there in one step: a backend that is no longer current and has no
    requests has had its last one."""

    def __init__(self) -> None:
        self.current: Backend | None = None
        self.status: dict[str, Any] = {}  # what /baton says beside who serves
        self._lock = Lock()

    def take(self) -> Backend | None:
        """The backend of a request that begins now; the request is to be given back when it is answered."""
        with self._lock:
            if self.current:
                self.current.requests += 1
            return self.current

    def give_back(self, backend: Backend) -> None:
        with self._lock:
            backend.requests -= 1

    def turn(self, backend: Backend | None) -> Backend | None:
        """Send all requests from now on to `backend`; returns the one that had them."""
        with self._lock:
            before, self.current = self.current, backend
            return before
