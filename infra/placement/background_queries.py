"""Run slow queries in the background, for callers that must return quickly."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


class BackgroundQueries:
    """Runs each query in a daemon thread, one at a time per name. A result that was too late for one caller goes to
    the next."""

    def __init__(self) -> None:
        self._open: dict[str, Future[Any]] = {}
        self._lock = threading.Lock()

    def start(self, name: str, query: Callable[[], T]) -> Future[T]:
        """Start the query, unless one with the same name is pending; return its future result."""
        with self._lock:
            if name not in self._open:
                self._open[name] = Future()
                threading.Thread(target=_run, args=(query, self._open[name]), name=name, daemon=True).start()
            return self._open[name]

    def result(self, name: str, patience_s: float = 0.0) -> Any:
        """Return the result, or raise the query's exception. Raises TimeoutError if the query is still running."""
        future = self._open[name]
        try:
            return future.result(patience_s)
        finally:
            with self._lock:
                if future.done():
                    self._open.pop(name, None)


def _run(query: Callable[[], T], future: Future[T]) -> None:
    try:
        answer = query()
    except BaseException as error:  # raised for the caller
        future.set_exception(error)
    else:
        future.set_result(answer)
