"""Read and write a corpus: documents in Parquet files, split into train and held-out by their content.

    train-00000.parquet …, held_out-00000.parquet …    columns id, source, text (strings); metadata (a JSON object) if a
                                                        source names fields to keep
    train-web-00000.parquet …, train-books-00000.parquet …    the train split of a corpus with named sources

A row group has about 1 MiB of text and is the unit of parallel work downstream. The same documents in the same order
give the same bytes on every machine.
"""

import json
import re
from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from blake3 import blake3

from baton.tasks.core.manifest import text_digest

Split = Literal["train", "held_out"]
SPLITS: tuple[Split, ...] = get_args(Split)

ROW_GROUP_BYTES = 1 << 20  # bytes of text
_ROWS = 1024  # in memory at a time when reading only texts
_NAMES = 1 << 15  # in memory at a time when reading only names
FILE_BYTES = 1 << 29  # bytes of text; about 150 MB compressed
NAMES = pa.schema([("id", pa.string()), ("source", pa.string())])
_SCHEMA = NAMES.append(pa.field("text", pa.string()))
_METADATA = pa.field("metadata", pa.string())


class Document(NamedTuple):  # created in half the time of a dataclass
    id: str  # BLAKE3 of the text in UTF-8, hex; also determines the split and duplicates
    source: str  # place in the corpus's source: "asyncio/tasks.py", "pages.jsonl#17"
    text: str
    metadata_json: str = ""

    @property
    def metadata(self) -> dict[str, Any]:
        """The fields of its record that the source's `metadata` names."""
        return json.loads(self.metadata_json or "{}")  # type: ignore[no-any-return]


@dataclass(frozen=True)
class RowGroup:
    """About 1 MiB of documents in an open file."""

    file: pq.ParquetFile
    index: int

    def rows(self) -> int:
        return int(self.file.metadata.row_group(self.index).num_rows)

    def read(self, columns: list[str] | None = None) -> pa.Table:
        return self.file.read_row_group(self.index, columns, use_threads=False)


def document_id(text: bytes) -> str:
    """The id of a document with these bytes, without checking that they are UTF-8."""
    return blake3(text.removeprefix(BOM_UTF8)).digest().hex()  # in less time than hexdigest()


def document(source: str, text: str, metadata_json: str = "") -> Document:
    """Make a document. Raises UnicodeEncodeError if the text has lone surrogates, which UTF-8 cannot encode."""
    return Document(text_digest(text), source, text, metadata_json)


def split_of(document_id: str, held_out: float) -> Split:
    """A document's split. Depends only on its text: it does not change with other documents, and a larger fraction
    still holds out every document that a smaller one did."""
    return "held_out" if int(document_id[:16], 16) < held_out * 2**64 else "train"


def stem(split: Split, source: str | None) -> str:
    """The beginning of the file names of a split, or of a named source's part of it."""
    return f"{split}-{source}" if source else split


def stem_of(path: Path) -> str:
    """The stem of a split's file: train-web of train-web-00000.parquet."""
    return path.stem.rpartition("-")[0]


def file_name(of_stem: str, number: int) -> str:
    return f"{of_stem}-{number:05}.parquet"


def read_documents(corpus_dir: Path, split: Split) -> Iterator[Document]:
    """A split's documents, in order, with about 1 MiB of text in memory at a time."""
    for group in row_groups(corpus_dir, split):
        yield from documents_in(group.read())


def name_batches(paths: Iterable[Path]) -> Iterator[pa.RecordBatch]:
    """The columns id and source of Parquet files, in order."""
    for path in paths:
        yield from _columns(path, NAMES.names, _NAMES)


def write_names(path: Path, names: Sequence[tuple[str, str]]) -> None:
    """Write documents without their texts."""
    pq.write_table(pa.table(list(zip(*names, strict=True)), names=["id", "source"]), path, compression="zstd")


def text_sizes(corpus_dir: Path, split: Split) -> npt.NDArray[np.int64]:
    """The UTF-8 size of each of a split's documents, in order."""
    columns = (batch["text"] for path in split_files(corpus_dir, split) for batch in _columns(path, ["text"], _ROWS))
    return np.concatenate([np.empty(0, np.int64), *(pc.binary_length(texts).to_numpy() for texts in columns)])


def _columns(path: Path, names: list[str], rows: int) -> Iterator[pa.RecordBatch]:
    with pq.ParquetFile(path, pre_buffer=False) as file:  # all that was read stays in memory otherwise
        yield from file.iter_batches(rows, columns=names, use_threads=False)


def split_files(corpus_dir: Path, split: Split, source: str | None = None) -> list[Path]:
    """A split's files, in order, or those of one named source."""
    return [corpus_dir / name for name in split_names((path.name for path in corpus_dir.iterdir()), split, source)]


def split_names(names: Iterable[str], split: Split, source: str | None = None) -> list[str]:
    """`split_files` for these names of files."""
    pattern = rf"{split}-.*\.parquet" if source is None else rf"{stem(split, source)}-\d{{5}}\.parquet"
    return sorted(name for name in names if re.fullmatch(pattern, name, re.DOTALL))


def row_groups(corpus_dir: Path, split: Split, source: str | None = None) -> Iterator[RowGroup]:
    """A split's row groups, in order, or those of one named source. Each can be read until the next is requested."""
    for path in split_files(corpus_dir, split, source):
        with pq.ParquetFile(path, pre_buffer=False) as file:
            yield from (RowGroup(file, index) for index in range(file.num_row_groups))


def source_at(corpus_dir: Path, split: Split, row: int) -> str:
    """The `source` of a row of a split."""
    for group in row_groups(corpus_dir, split):
        if row < group.rows():
            return str(group.read(["source"])["source"][row])
        row -= group.rows()
    raise IndexError(f"{corpus_dir}, {split}: no such row")


def documents_in(table: pa.Table) -> list[Document]:
    names = [*_SCHEMA.names, *({_METADATA.name} & set(table.column_names))]
    return [Document(*row) for row in zip(*(table[name].to_pylist() for name in names), strict=True)]


def have_metadata(files: Iterable[Path]) -> bool:
    """Return whether any of the files has metadata."""
    return any(_METADATA.name in pq.read_schema(path).names for path in files)


@dataclass
class SplitWriter:
    """Writes one split's documents to `<split>-00000.parquet`, `<split>-00001.parquet`, …; with a named source, its
    part of them to `<split>-<source>-00000.parquet`, … Tables that are added must all have the column `metadata`, or
    none of them."""

    directory: Path
    split: Split
    source: str | None = None
    metadata: bool = False
    documents: int = 0
    bytes: int = 0  # size as UTF-8 text
    _rows: list[Document] = field(default_factory=list)
    _rows_bytes: int = 0
    _files: int = 0
    _file_bytes: int = 0
    _writer: pq.ParquetWriter | None = None

    def add(self, item: Document) -> None:
        self._rows.append(item)
        self._rows_bytes += len(item.text) if item.text.isascii() else len(item.text.encode())
        if self._rows_bytes >= ROW_GROUP_BYTES:
            self._flush()

    def add_table(self, table: pa.Table) -> None:
        """Add documents as a separate row group."""
        self._flush()
        self._write(table, int(pc.sum(pc.binary_length(table["text"])).as_py() or 0))

    def close(self) -> None:
        self._flush()
        self._close_file()

    def _flush(self) -> None:
        if not self._rows:
            return
        *columns, metadata = zip(*self._rows, strict=True)
        table = pa.table(columns, schema=_SCHEMA)
        if self.metadata:
            table = table.append_column(_METADATA, pa.array([text or "{}" for text in metadata], _METADATA.type))
        size = self._rows_bytes
        self._rows, self._rows_bytes = [], 0
        self._write(table, size)

    def _write(self, table: pa.Table, size: int) -> None:
        if not len(table):
            return
        if self._writer is None:
            path = self.directory / file_name(stem(self.split, self.source), self._files)
            self._writer = pq.ParquetWriter(path, table.schema, compression="zstd", use_dictionary=False)
            self._files += 1
        self._writer.write_table(table, row_group_size=len(table))
        self.documents += len(table)
        self.bytes += size
        self._file_bytes += size
        if self._file_bytes >= FILE_BYTES:
            self._close_file()

    def _close_file(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._writer, self._file_bytes = None, 0
