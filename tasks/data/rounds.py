"""Work on many items in several processes, in any order.

A round applies a function to items that do not depend on each other: each writes its own file or folder, completely or
not at all, and an item whose output exists is skipped. So a round gives the same result with any number of workers, and
after any number of restarts.

Machines that share the folder divide the items among themselves: each works on its share, and waits for the others.
"""

import errno
import gc
import heapq
import multiprocessing
import os
import re
import resource
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial, reduce
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from baton.infra.process.limits import cores
from baton.tasks.core.job import StageError

AHEAD = 3  # items in flight per other process
ALONE_S = 0.5  # the time that a process takes to start
SHOWN_S = 0.5  # between two reports
LOOK_S = 0.02  # between two polls of the other processes, during an item's many reports
COLLECT_AFTER = 50_000  # new objects; documents are tuples, which exceed Python's default, 700, all the time

T = TypeVar("T")


class Amount(NamedTuple):
    """The content of some items."""

    documents: int = 0
    text_bytes: int = 0  # UTF-8
    tokens: int = 0

    def plus(self, more: "Amount") -> "Amount":
        return Amount(*(one + other for one, other in zip(self, more, strict=True)))


NOTHING = Amount()
Report = Callable[[float, Amount], None]  # the fraction of an item that is done, and its content
Work = Callable[[T, Report], None]

_context = multiprocessing.get_context("spawn")  # tokenizers' threads do not survive a fork


@dataclass(frozen=True)
class Progress:
    fraction: float  # of the round, by the sizes of its items
    done: int  # items
    amount: Amount


class Used(NamedTuple):
    """Resources that processes used for items."""

    cpu_s: float = 0.0
    memory: int = 0  # bytes, of the largest of these processes at its peak

    def plus(self, more: "Used") -> "Used":
        return Used(self.cpu_s + more.cpu_s, max(self.memory, more.memory))


NO_USE = Used()


@dataclass
class Round:
    """The state of a round."""

    sizes: Sequence[int]
    show: Callable[[Progress], None]
    running: dict[int, tuple[float, Amount]] = field(default_factory=dict)
    done: int = 0
    size: int = 0  # of the items that are done
    amount: Amount = NOTHING  # of the items that are done
    used: Used = NO_USE
    shown: float = field(default_factory=time.monotonic)

    def report(self, number: int, fraction: float, amount: Amount) -> None:
        self.running[number] = fraction, amount
        if time.monotonic() - self.shown > SHOWN_S:
            self.shown = time.monotonic()
            size = self.size + sum(part * self.sizes[item] for item, (part, _) in self.running.items())
            amount = reduce(Amount.plus, (amount for _, amount in self.running.values()), self.amount)
            self.show(Progress(size / (sum(self.sizes) or 1), self.done, amount))

    def end(self, number: int, used: Used) -> None:
        self.used = self.used.plus(used)
        self.amount = self.amount.plus(self.running.pop(number, (0.0, NOTHING))[1])
        self.size += self.sizes[number]
        self.done += 1


def dealt(sizes: Sequence[int], machines: int) -> list[int]:
    """The machine, from 0, for each item. The largest items are assigned first, each to the machine with the least."""
    machine, loads = [0] * len(sizes), [(0, rank) for rank in range(machines)]
    for number in sorted(range(len(sizes)), key=lambda number: -sizes[number]):
        load, rank = heapq.heappop(loads)
        machine[number] = rank
        heapq.heappush(loads, (load + sizes[number], rank))
    return machine


class Ended(Exception):
    """The first machine has finished the stage, and removed the outputs that the others could wait for."""


def wait_for(paths: Sequence[Path], show: Callable[[int], None], ended: Path | None = None) -> None:
    """Wait until all of these files exist, which other machines write. Calls `show` with their number from time to
    time. Raises Ended if the file `ended` exists before."""
    missing = list(paths)
    while missing := [path for path in missing if not path.exists()]:
        if ended and ended.exists():
            raise Ended
        show(len(paths) - len(missing))
        time.sleep(SHOWN_S)


class Workers:
    """This process and the others that work with it, which are started by the first round that can use several. There
    are `number` in all; by default as many as cores, but none are started for work of half a second."""

    def __init__(self, number: int | None) -> None:
        self._number = number or cores()
        self._alone_s = 0.0 if number else ALONE_S
        self._pool: ProcessPoolExecutor | None = None
        self._reports: Any = _context.SimpleQueue()

    def run(self, work: Work[T], items: Sequence[T], sizes: Sequence[int], show: Callable[[Progress], None]) -> Round:
        """Work on all items, the largest first; in this process alone if there is one item or one worker. The first
        error of an item is raised, after the items in progress have ended. Returns the final state of the round. Raises
        StageError if a worker dies."""
        state = Round(sizes, show)
        upcoming = deque(sorted(enumerate(items), key=lambda entry: -sizes[entry[0]]))
        pending = dict[Future[Used], int]()
        began = looked = time.monotonic()

        def hear() -> None:
            while not self._reports.empty():
                state.report(*self._reports.get())

        def share() -> None:
            """Keep the other processes busy, but leave this process its part."""
            if self._pool is None and time.monotonic() - began < self._alone_s:
                return
            active = sum(not future.done() for future in pending)
            while active < AHEAD * (self._number - 1) and len(upcoming) > (len(upcoming) + active) // self._number:
                entry = upcoming.popleft()
                pending[self._started().submit(_work, work, entry)] = entry[0]
                active += 1

        def report(number: int, fraction: float, amount: Amount) -> None:
            nonlocal looked
            state.report(number, fraction, amount)
            if time.monotonic() - looked > LOOK_S:
                looked = time.monotonic()
                hear()
                share()

        try:
            while upcoming or pending:
                share()
                if upcoming:
                    number, item = upcoming.popleft()
                    state.end(number, _measured(work, item, partial(report, number)))
                ended, _ = wait(pending, 0 if upcoming else SHOWN_S, FIRST_COMPLETED)
                hear()  # a process reports an item's content before its end
                for future in ended:
                    state.end(pending.pop(future), future.result())
        except BrokenProcessPool as error:
            why = "a worker was killed (out of memory?); run again to continue, maybe with partitions.concurrency: 1"
            raise StageError(why) from error
        return state

    def _started(self) -> ProcessPoolExecutor:
        if self._pool is None:
            self._pool = ProcessPoolExecutor(self._number - 1, _context, initializer=_start, initargs=(self._reports,))
        return self._pool

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)


@contextmanager
def workers(number: int | None) -> Iterator[Workers]:
    """Workers whose other processes end with the block, and with this process, however it ends."""
    pool = Workers(number)
    thresholds = gc.get_threshold()
    _collect_less()
    try:
        yield pool
    finally:
        gc.unfreeze()
        gc.set_threshold(*thresholds)
        pool.close()


_reports: Any = None  # this worker's queue


def _start(reports: Any) -> None:
    global _reports  # noqa: PLW0603  a pool's initializer cannot return anything
    _reports = reports
    _collect_less()
    threading.Thread(target=exit_with_parent, daemon=True).start()


def _collect_less() -> None:
    """Run the garbage collector less often: it would take 7 % of a scan's time, and traverse all imported modules."""
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER)


def _measured(work: Work[T], item: T, report: Report) -> Used:
    began = time.process_time()
    with full_disk_named():
        work(item, report)
    return Used(time.process_time() - began, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)


def _work(work: Work[T], entry: tuple[int, T]) -> Used:
    number, item = entry
    last = (0.0, NOTHING)
    sent = time.monotonic()

    def report(fraction: float, amount: Amount) -> None:
        nonlocal last, sent
        last = fraction, amount
        if time.monotonic() - sent > SHOWN_S:
            sent = time.monotonic()
            _reports.put((number, fraction, amount))

    used = _measured(work, item, report)
    _reports.put((number, *last))
    return used


@contextmanager
def full_disk_named() -> Iterator[None]:
    """Raise NumPy's error about a full disk as ENOSPC: its message has only the numbers of items, and no reason."""
    try:
        yield
    except OSError as error:
        if error.errno is None and re.fullmatch(r"\d+ requested and \d+ written", str(error)):
            raise OSError(errno.ENOSPC, f"{os.strerror(errno.ENOSPC)} (bytes or items: {error})") from error
        raise


def exit_with_parent() -> None:
    """End this worker process when its parent has ended; for a thread."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
