"""Questions whose answers may take long, for callers that must answer soon."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


class Asked:
    """Each question is asked once at a time, in a thread of its own that keeps no process from ending. An answer that
    came too late for one caller is the next one's."""

    def __init__(self) -> None:
        self._open: dict[str, Future[Any]] = {}
        self._lock = threading.Lock()

    def begin(self, name: str, question: Callable[[], T]) -> Future[T]:
        """Its answer to be: of this call, or of an earlier one of that name which nobody has taken."""
        with self._lock:
            if name not in self._open:
                self._open[name] = Future()
                threading.Thread(target=_ask, args=(question, self._open[name]), name=name, daemon=True).start()
            return self._open[name]

    def take(self, name: str, patience_s: float = 0.0) -> Any:
        """The answer, or what the question raised. Raises TimeoutError: it is still being asked."""
        future = self._open[name]
        try:
            return future.result(patience_s)
        finally:
            with self._lock:
                if future.done():
                    self._open.pop(name, None)


def _ask(question: Callable[[], T], future: Future[T]) -> None:
    try:
        answer = question()
    except BaseException as error:  # it is the caller's
        future.set_exception(error)
    else:
        future.set_result(answer)
