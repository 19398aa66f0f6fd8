"""Encode a corpus on all cores, in the corpus's order.

Worker processes, one a core, each take a row group (~1 MiB), encode it on one thread and send back
the ids. Processes rather than the tokenizer's own threads: reading, decompressing and turning ids
into an array run in parallel too. Memory is bounded by the row groups that are under way.
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
from tasks.job import StageError

AHEAD = 3  # row groups under way for each worker


@dataclass(frozen=True)
class Encoded:
    """One row group's documents as they go into the files."""

    ids: bytes  # all documents' token ids, each document's followed by the end-of-text token
    lengths: bytes  # tokens in each document, the end-of-text token included; int32
    text_bytes: int  # UTF-8


@dataclass(frozen=True)
class Encoder:
    """What turns documents into token ids. Special tokens that a document spells out are only text:
    they get their letters' tokens, since what a page says must not end a document or start a chat."""

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
    tokenizer.no_truncation()  # an existing tokenizer.json may ask for either
    tokenizer.no_padding()
    return Encoder(tokenizer, eos_id, dtype)


def cores() -> int:
    """The cores this process may use."""
    return len(os.sched_getaffinity(0))


@contextmanager
def worker_pool(tokenizer_dir: Path, eos_id: int, dtype: TokenDtype) -> Iterator[ProcessPoolExecutor]:
    """Worker processes that end with this one, however it ends."""
    context = multiprocessing.get_context("spawn")  # tokenizers' threads do not survive a fork
    pool = ProcessPoolExecutor(cores(), context, initializer=_start, initargs=(tokenizer_dir, eos_id, dtype))
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def encode_in_order(pool: ProcessPoolExecutor, groups: list[RowGroup]) -> Iterator[Encoded]:
    """Each row group encoded, in the order given. Raises StageError when a worker dies."""
    waiting: deque[Future[Encoded]] = deque()
    upcoming = iter(groups)
    try:
        while True:
            while len(waiting) < AHEAD * cores() and (group := next(upcoming, None)) is not None:
                waiting.append(pool.submit(_encode, group))
            if not waiting:
                return
            yield waiting.popleft().result()
    except BrokenProcessPool as error:
        raise StageError("a tokenizing worker was killed (out of memory?); run again to go on from here") from error


_encoder: Encoder | None = None  # this worker's


def _start(tokenizer_dir: Path, eos_id: int, dtype: TokenDtype) -> None:
    global _encoder  # noqa: PLW0603  a pool's initializer can leave its work nowhere else
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # a core is one worker's
    _encoder = open_encoder(tokenizer_dir, eos_id, dtype)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _encode(group: RowGroup) -> Encoded:
    assert _encoder is not None
    return _encoder.encode(group)
