"""Read the next step's batches while the device works on the current step.

A step's batches depend only on its span of the data. So prefetched batches need not be saved, and a run that rolled
back just reads another span.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Generic, Self, TypeVar

import torch

T = TypeVar("T")


class Prefetch(Generic[T]):
    """A thread that reads one span ahead, as a context manager that stops the thread at exit."""

    def __init__(self, read: Callable[[range], T]) -> None:
        self._read = read
        self._ahead: tuple[range, Future[T]] | None = None
        # A new thread's current device is GPU 0, and memory is pinned for the current device
        device = torch.cuda.current_device() if torch.cuda.is_available() else None
        self._thread = ThreadPoolExecutor(1, "prefetch", initializer=_use, initargs=(device,))

    def get(self, span: range, following: range | None) -> T:
        """Return the data of `span` and start reading `following`. Raises the exceptions of `read`."""
        span_ahead, future = self._ahead or (None, None)
        self._ahead = None
        if future is None or span_ahead != span:
            future = self._thread.submit(self._read, span)  # queued after an unused read, if any
        batches = future.result()
        if following is not None:
            self._ahead = following, self._thread.submit(self._read, following)
        return batches

    def wait(self) -> None:
        """Wait until nothing is being read, since no thread may be active when the process forks."""
        if self._ahead is not None:
            self._ahead[1].exception()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._thread.shutdown(cancel_futures=True)


def _use(device: int | None) -> None:
    if device is not None:
        torch.cuda.set_device(device)
