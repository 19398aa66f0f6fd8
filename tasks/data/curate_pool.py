"""Curate documents on all cores, in their order.

Worker processes, one per core, each take a batch and return what is left of it, with its counts. Batches are taken in
order, so that neither the result nor the counts depend on the number of workers. Each worker has its own models
(languages: 0.5 GB).
"""

import multiprocessing
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from tasks.data.curate import Curation
from tasks.data.curate_spec import CurateStep
from tasks.data.curation_tally import Tally
from tasks.data.documents import Document
from tasks.data.encode import AHEAD, cores, exit_with_parent
from tasks.job import StageError

BATCH_CHARACTERS = 1 << 18
BATCH_DOCUMENTS = 256

# (documents, their source's name, the tally to add to) -> the documents that are left
Curate = Callable[[Iterable[Document], str | None, Tally], Iterator[Document]]


@contextmanager
def curating(steps: list[CurateStep], folder: Path) -> Iterator[Curate]:
    """Worker processes that end with this one; none if there are no steps. `folder`: for the users' functions."""
    if not steps:
        yield lambda documents, source, tally: iter(documents)
        return
    context = multiprocessing.get_context("spawn")  # tokenizers' threads do not survive a fork
    pool = ProcessPoolExecutor(cores(), context, initializer=_start, initargs=(steps, folder))
    try:
        yield partial(_in_order, pool)
    finally:
        pool.shutdown(cancel_futures=True)


def _in_order(
    pool: ProcessPoolExecutor, documents: Iterable[Document], source: str | None, tally: Tally
) -> Iterator[Document]:
    """Raises StageError if a step fails or a worker dies."""
    pending: deque[Future[tuple[list[Document], Tally]]] = deque()
    upcoming = _batches(documents)
    try:
        while True:
            while len(pending) < AHEAD * cores() and (batch := next(upcoming, None)) is not None:
                pending.append(pool.submit(_curate, batch, source))
            if not pending:
                return
            left, of_batch = pending.popleft().result()
            tally.add(of_batch)
            yield from left
    except BrokenProcessPool as error:
        raise StageError("a curation worker was killed (out of memory?); run again, maybe on fewer cores") from error


def _batches(documents: Iterable[Document]) -> Iterator[list[Document]]:
    batch: list[Document] = []
    characters = 0
    for item in documents:
        batch.append(item)
        characters += len(item.text)
        if characters >= BATCH_CHARACTERS or len(batch) >= BATCH_DOCUMENTS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


_steps: list[CurateStep] = []  # this worker's
_folder = Path()
_curation: Curation | None = None


def _start(steps: list[CurateStep], folder: Path) -> None:
    global _steps, _folder
    _steps, _folder = steps, folder / str(os.getpid())  # workers must not write over each other's files
    threading.Thread(target=exit_with_parent, daemon=True).start()


def _curate(batch: list[Document], source: str | None) -> tuple[list[Document], Tally]:
    global _curation  # noqa: PLW0603
    if _curation is None:  # not in _start, whose errors a pool does not pass on
        _curation = Curation(_steps, _folder)
    tally = Tally()
    left = [kept for item in batch if (kept := _curation.apply(item, source, tally))]
    return left, tally
