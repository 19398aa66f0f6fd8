"""Work on many items in worker processes, in any order.

A round is a function of this project and its items, which do not depend on each other: each writes its own file or
folder, completely or not at all, and an item that is made is not made again. So a round gives the same result with any
number of workers, and after any number of restarts.
"""

import ctypes
import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from tasks.job import StageError

AHEAD = 3  # items in flight per worker
SHOWN_S = 0.5  # between two looks at the progress


class Report(Protocol):
    """How an item says which part of its work is done."""

    def __call__(self, fraction: float, documents: int) -> None: ...


T = TypeVar("T")
Work = Callable[[T, Report], Any]


@dataclass(frozen=True)
class Progress:
    fraction: float  # of the round, by the sizes of its items
    done: int  # items
    documents: int


def cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


def run_round(
    work: Work[T], items: Sequence[T], sizes: Sequence[int], workers: int, show: Callable[[Progress], None]
) -> int:
    """Work on all items, the largest first; in this process if there is only one of them or one worker. The first error
    of an item is raised, after those in progress have ended. Returns the number of documents that the items reported.
    Raises StageError if a worker dies."""
    context = multiprocessing.get_context("spawn")  # tokenizers' threads do not survive a fork
    state = context.RawArray(ctypes.c_double, 2 * len(items))  # of each item: its fraction and its documents
    total = sum(sizes) or 1
    last = time.monotonic()

    def shown(done: int) -> None:
        nonlocal last
        if time.monotonic() - last > SHOWN_S:
            last = time.monotonic()
            fraction = sum(part * size for part, size in zip(state[0::2], sizes, strict=True)) / total
            show(Progress(fraction, done, int(sum(state[1::2]))))

    ordered = sorted(enumerate(items), key=lambda entry: -sizes[entry[0]])
    workers = min(workers, len(items))
    if workers > 1:
        for done in _in_pool(context, work, ordered, workers, state):
            shown(done)
        return int(sum(state[1::2]))
    for done, (number, item) in enumerate(ordered):

        def report(fraction: float, documents: int, number: int = number, done: int = done) -> None:
            state[2 * number : 2 * number + 2] = [fraction, documents]
            shown(done)

        work(item, report)
    return int(sum(state[1::2]))


def _in_pool(context: Any, work: Work[T], items: Sequence[tuple[int, T]], workers: int, state: Any) -> Iterator[int]:
    """Yields the number of finished items, now and then."""
    pool = ProcessPoolExecutor(workers, context, initializer=_start, initargs=(state,))
    upcoming, pending, done = iter(items), set[Future[None]](), 0
    try:
        while True:
            while len(pending) < AHEAD * workers and (entry := next(upcoming, None)) is not None:
                pending.add(pool.submit(_work, work, entry))
            if not pending:
                return
            ended, pending = wait(pending, SHOWN_S, FIRST_COMPLETED)
            for future in ended:
                future.result()
            done += len(ended)
            yield done
    except BrokenProcessPool as error:
        message = "a worker was killed (out of memory?); run again to continue, maybe with partitions.concurrency: 1"
        raise StageError(message) from error
    finally:
        pool.shutdown(cancel_futures=True)


_state: Any = None  # this worker's


def _start(state: Any) -> None:
    global _state  # noqa: PLW0603  a pool's initializer cannot return anything
    _state = state
    threading.Thread(target=exit_with_parent, daemon=True).start()


def _work(work: Work[T], entry: tuple[int, T]) -> None:
    number, item = entry

    def report(fraction: float, documents: int) -> None:
        _state[2 * number : 2 * number + 2] = [fraction, documents]

    work(item, report)


def exit_with_parent() -> None:
    """End this worker process when its parent has ended; for a thread."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
