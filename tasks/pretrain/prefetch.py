"""Reads the next step's batches while the device works on this step's.

What a step reads is a span of the data, and the span alone says what it is. So a resume needs nothing
of what was read ahead, and a run that turns elsewhere (it rolled back) reads there and then.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Generic, Self, TypeVar

import torch

T = TypeVar("T")


class Prefetch(Generic[T]):
    """One thread that is ahead by one span. A context: at its end the thread has ended."""

    def __init__(self, read: Callable[[range], T]) -> None:
        self._read = read
        self._ahead: tuple[range, Future[T]] | None = None
        # a thread's device is GPU 0 until it is told otherwise; what it pins is pinned for its device
        device = torch.cuda.current_device() if torch.cuda.is_available() else None
        self._thread = ThreadPoolExecutor(1, "prefetch", initializer=_use, initargs=(device,))

    def take(self, span: range, following: range | None) -> T:
        """What is in `span`; from now on `following` is being read. Raises what `read` raised."""
        span_ahead, result = self._ahead or (None, None)
        self._ahead = None
        if result is None or span_ahead != span:
            result = self._thread.submit(self._read, span)  # behind what is being read in vain, if anything
        found = result.result()
        if following is not None:
            self._ahead = following, self._thread.submit(self._read, following)
        return found

    def wait(self) -> None:
        """Until nothing is being read: a process that forks must have no thread at work."""
        if self._ahead is not None:
            self._ahead[1].exception()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._thread.shutdown(cancel_futures=True)


def _use(device: int | None) -> None:
    if device is not None:
        torch.cuda.set_device(device)
