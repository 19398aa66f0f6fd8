"""Tokenize a corpus on all cores, in the corpus's order.

Worker processes, one per core, each take a row group (~1 MiB), tokenize it on one thread and return the ids. Processes
are used instead of the tokenizer's threads so that reading, decompressing and array conversion also run in parallel.
Memory is bounded by the number of row groups in flight.
"""

import multiprocessing
import os
import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer as FastTokenizer

from tasks.data.documents import RowGroup, read_row_group
from tasks.data.indexed_dataset import TokenDtype
from tasks.data.rounds import AHEAD, cores, exit_with_parent
from tasks.job import StageError


@dataclass(frozen=True)
class Encoded:
    """One row group's documents in the files' format."""

    ids: bytes  # token ids of all documents, each followed by the end-of-text token
    lengths: bytes  # tokens per document, end-of-text included; int32
    text_bytes: int  # UTF-8


@dataclass(frozen=True)
class Encoder:
    """Tokenizes documents. Special tokens in a document's text are encoded as plain text, since text must not be able
    to end a document or start a chat turn."""

    tokenizer: FastTokenizer
    eos_id: int
    dtype: TokenDtype

    def encode(self, group: RowGroup) -> Encoded:
        texts = [item.text for item in read_row_group(group)]
        encodings = self.tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        documents = [[*encoding.ids, self.eos_id] for encoding in encodings]
        lengths = np.fromiter(map(len, documents), dtype="<i4", count=len(documents))
        ids = np.fromiter(chain.from_iterable(documents), dtype=self.dtype, count=int(lengths.sum()))
        return Encoded(ids.tobytes(), lengths.tobytes(), sum(len(text.encode()) for text in texts))


def open_encoder(tokenizer_dir: Path, eos_id: int, dtype: TokenDtype) -> Encoder:
    tokenizer = FastTokenizer.from_file(str(tokenizer_dir / "tokenizer.json"))
    tokenizer.encode_special_tokens = True
    tokenizer.no_truncation()  # an existing tokenizer.json may enable either
    tokenizer.no_padding()
    return Encoder(tokenizer, eos_id, dtype)


@contextmanager
def worker_pool(tokenizer_dir: Path, eos_id: int, dtype: TokenDtype) -> Iterator[ProcessPoolExecutor]:
    """Worker processes that exit with this process, however it exits."""
    context = multiprocessing.get_context("spawn")  # tokenizers' threads do not survive a fork
    pool = ProcessPoolExecutor(cores(), context, initializer=_start, initargs=(tokenizer_dir, eos_id, dtype))
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def encode_in_order(pool: ProcessPoolExecutor, groups: list[RowGroup]) -> Iterator[Encoded]:
    """Each row group tokenized, in the given order. Raises StageError if a worker dies."""
    pending: deque[Future[Encoded]] = deque()
    upcoming = iter(groups)
    try:
        while True:
            while len(pending) < AHEAD * cores() and (group := next(upcoming, None)) is not None:
                pending.append(pool.submit(_encode, group))
            if not pending:
                return
            yield pending.popleft().result()
    except BrokenProcessPool as error:
        raise StageError("a tokenizer worker was killed (out of memory?); run again to continue from here") from error


_encoder: Encoder | None = None  # this worker's


def _start(tokenizer_dir: Path, eos_id: int, dtype: TokenDtype) -> None:
    global _encoder  # noqa: PLW0603  a pool's initializer cannot return anything
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one core per worker
    _encoder = open_encoder(tokenizer_dir, eos_id, dtype)
    threading.Thread(target=exit_with_parent, daemon=True).start()


def _encode(group: RowGroup) -> Encoded:
    assert _encoder is not None
    return _encoder.encode(group)
