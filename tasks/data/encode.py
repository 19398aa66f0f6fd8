"""Tokenize a part of a corpus' file.

    ids        token ids of all documents, each between BOS, if the tokenizer adds one, and the end-of-text token; as
               in `.bin`
    lengths    tokens of each document, these included; int32
    manifest.json    its facts are an `Amount`

A part is tokenized by one process, with one row group (~1 MiB of text) in memory, and its folder is complete or
missing. It depends only on the file's content and the tokenizer.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from baton.tasks.core.job import Input, StageError
from baton.tasks.core.manifest import read_manifest
from baton.tasks.data.encoders import Choice, FastTokens, Ids, LibraryTokens
from baton.tasks.data.indexed_dataset import TokenDtype, token_dtype
from baton.tasks.data.partition_cache import FolderCache, make_once
from baton.tasks.data.prefixes import FilePart
from baton.tasks.data.rounds import NOTHING, Amount, Report
from baton.tasks.models.tokenizers import plain

IDS = "ids"
LENGTHS = "lengths"


@dataclass(frozen=True)
class DocumentEncoder:
    """A tokenizer, which each process loads once."""

    folder: Path
    vocab_size: int
    eos_id: int
    begin: tuple[int, ...]  # BOS, if the tokenizer adds one and it is not the token that ends a document too
    choice: Choice

    @property
    def dtype(self) -> TokenDtype:
        return token_dtype(self.vocab_size)

    def encode(self, texts: pa.ChunkedArray) -> tuple[Ids, npt.NDArray[np.int32]]:
        """Documents as ids, each between the tokenizer's beginning and the end-of-text token, and their lengths.
        Special tokens in a document's text are encoded as plain text, since text must not be able to end a document or
        start a chat turn."""
        ids, lengths = (_library if self._by_library(texts) else _fast)(self.folder)(texts)
        if len(ids) and (highest := int(ids.max())) >= self.vocab_size:
            raise StageError(f"{self.folder}: gives a token {highest}, beyond its vocab_size {self.vocab_size}")
        return _joined(ids, lengths, self.begin, self.eos_id, self.dtype)

    def _by_library(self, texts: pa.ChunkedArray) -> bool:
        if self.choice.reason:
            return True
        others = texts.filter(pc.invert(pc.string_is_ascii(texts)))
        return bool(pc.any(self.choice.is_excluded(others)).as_py())


def _joined(
    ids: Ids, lengths: npt.NDArray[np.int64], begin: Sequence[int], end: int, dtype: TokenDtype
) -> tuple[Ids, npt.NDArray[np.int32]]:
    """The ids of documents with these tokens before and after each of them, and the number of ids of each."""
    sizes = lengths + len(begin) + 1
    ends = np.cumsum(sizes)
    joined = np.empty(int(sizes.sum()), dtype)
    of_text = np.ones(len(joined), bool)
    for place, token in [*((ends - sizes + number, token) for number, token in enumerate(begin)), (ends - 1, end)]:
        joined[place] = token
        of_text[place] = False
    joined[of_text] = ids
    return joined, sizes.astype("<i4")


@dataclass(frozen=True)
class EncodeItem:
    """A part of a file to tokenize, and the folder for its tokens."""

    folder: Path
    corpus: Input  # without a path, the file is fetched if the part is missing
    part: FilePart
    encoder: DocumentEncoder
    cache: FolderCache | None  # for tokens of earlier corpora or other pods


def encode(item: EncodeItem, report: Report) -> None:
    """Tokenize a part, unless its tokens exist. Raises StorageError."""
    if not make_once(item.folder, "tokens", item.cache, partial(_encode, item, report)):
        report(1.0, NOTHING)


def _encode(item: EncodeItem, report: Report, folder: Path) -> dict[str, Any]:
    name, amount = item.part.file, NOTHING
    with (
        pq.ParquetFile(_folder(replace(item.corpus, files=(name,))) / name, pre_buffer=False) as file,
        (folder / IDS).open("wb") as ids_file,
        (folder / LENGTHS).open("wb") as lengths_file,
    ):
        groups = item.part.row_groups(file.num_row_groups)
        for done, number in enumerate(groups, 1):
            texts = file.read_row_group(number, columns=["text"], use_threads=False)["text"]
            ids, lengths = item.encoder.encode(texts)
            ids.tofile(ids_file)
            lengths.tofile(lengths_file)
            amount = amount.plus(Amount(len(lengths), pc.sum(pc.binary_length(texts)).as_py(), len(ids)))
            report(done / len(groups), amount)
    return amount._asdict()


@lru_cache(maxsize=1)
def _folder(corpus: Input) -> Path:
    """The corpus' folder, fetched first if it is not on this machine."""
    return Path(corpus.path) if corpus.path else corpus.local()


def encoded(folder: Path) -> Amount:
    """The content of an encoded part. Raises ArtifactError."""
    return Amount(**read_manifest(folder).facts)


@lru_cache(maxsize=1)
def _library(tokenizer: Path) -> LibraryTokens:
    return LibraryTokens(plain(tokenizer))


@lru_cache(maxsize=1)
def _fast(tokenizer: Path) -> FastTokens:
    return FastTokens(tokenizer)
