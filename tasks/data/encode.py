"""Tokenize a part of a corpus' file.

    ids        token ids of all documents, each between BOS, if the tokenizer adds one, and the end-of-text token; as
               in `.bin`
    lengths    tokens of each document, these included; int32
    manifest.json    its facts are an `Amount`

A part is tokenized by one process, with one row group (~1 MiB of text) in memory, and its folder is complete or
missing. It depends on nothing but the file's content and the tokenizer.
"""

from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc
import pyarrow.parquet as pq
from tokenizers import Tokenizer as FastTokenizer

from tasks.data.indexed_dataset import TokenDtype, token_dtype
from tasks.data.partition_cache import Kept, make_once
from tasks.data.rounds import NOTHING, Amount, Report
from tasks.manifest import read_manifest
from tasks.tokenizers import beginning, plain

IDS = "ids"
LENGTHS = "lengths"


@dataclass(frozen=True)
class Encoder:
    """A tokenizer, of which one process has one copy."""

    folder: Path
    vocab_size: int
    eos_id: int

    @property
    def dtype(self) -> TokenDtype:
        return token_dtype(self.vocab_size)

    def encode(self, texts: list[str]) -> tuple[npt.NDArray[Any], npt.NDArray[np.int32]]:
        """Documents as ids, each between the tokenizer's beginning (BOS, if it adds one) and the end-of-text token, and
        their lengths. Special tokens in a document's text are encoded as plain text, since text must not be able to end
        a document or start a chat turn."""
        tokenizer, begin = _opened(self.folder)
        if begin == [self.eos_id]:
            begin = []  # the token that ends a document begins the next one
        encodings = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        ids = [np.array([*begin, *encoding.ids, self.eos_id], self.dtype) for encoding in encodings]
        return np.concatenate([*ids, np.empty(0, self.dtype)]), np.array(list(map(len, ids)), "<i4")


@dataclass(frozen=True)
class EncodeItem:
    """Row groups of a file to tokenize, and where to."""

    folder: Path
    file: Path
    start: int  # the first row group
    end: int  # behind the last
    encoder: Encoder
    kept: Kept | None  # where the tokens of earlier corpora, or other pods, may be


def encode(item: EncodeItem, report: Report) -> None:
    """Tokenize a part unless that was done before. Raises StorageError."""
    if not make_once(item.folder, "tokens", item.kept, partial(_encode, item, report)):
        report(1.0, NOTHING)


def _encode(item: EncodeItem, report: Report, folder: Path) -> dict[str, Any]:
    amount = NOTHING
    with (
        pq.ParquetFile(item.file, pre_buffer=False) as file,
        (folder / IDS).open("wb") as ids_file,
        (folder / LENGTHS).open("wb") as lengths_file,
    ):
        for number in range(item.start, item.end):
            column = file.read_row_group(number, columns=["text"], use_threads=False)["text"]
            ids, lengths = item.encoder.encode(column.to_pylist())
            ids.tofile(ids_file)
            lengths.tofile(lengths_file)
            text_bytes = pc.sum(pc.binary_length(column)).as_py()
            amount = amount.plus(Amount(len(lengths), text_bytes, len(ids)))
            report((number + 1 - item.start) / (item.end - item.start), amount)
    return amount._asdict()


def encoded(folder: Path) -> Amount:
    """What is in an encoded part. Raises ArtifactError."""
    return Amount(**read_manifest(folder).facts)


@lru_cache(maxsize=1)
def _opened(folder: Path) -> tuple[FastTokenizer, list[int]]:
    tokenizer = plain(folder)
    return tokenizer, beginning(tokenizer)
