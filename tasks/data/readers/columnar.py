"""Read one column of Parquet and Arrow files. Values are binary, since strings in the files may not be valid UTF-8."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from baton.infra.storage.address import File
from baton.tasks.core.job import StageError
from baton.tasks.data.partitions import Piece
from baton.tasks.data.readers.arrow_rows import rows_of
from baton.tasks.data.readers.raw import (
    Broken,
    BrokenRecord,
    Raw,
    as_broken,
    chosen_fields,
    note_broken,
    refuse_large,
    skipping,
)
from baton.tasks.data.source_spec import ArrowSource, ParquetSource, listed

ROWS = 32  # Parquet rows in memory at a time
PAGES_BYTES = 1 << 20  # bytes of a column that are read at a time
ARROW_FILE = b"ARROW1"


@contextmanager
def parquet_file(source: File) -> Iterator[pq.ParquetFile]:
    """Open a Parquet file for reading batches. Both options are needed: with the default of one, an entire row group is
    in memory, and with that of the other, all that was read."""
    with source.open() as opened, pq.ParquetFile(opened, buffer_size=PAGES_BYTES, pre_buffer=False) as file:
        yield file


def parquet_records(source: File) -> Iterator[dict[str, Any]]:
    """All rows of a Parquet file. Raises StageError."""
    with as_broken(source.place, "Parquet"), parquet_file(source) as file:
        for batch in file.iter_batches(batch_size=ROWS):
            yield from rows_of(batch)


def read_parquet(source: ParquetSource, pieces: Sequence[Piece], broken: Broken | None) -> Iterator[Raw]:
    """Read documents, which are named by their row in the file: "pages.parquet#17"."""
    total = sum(piece.size for piece in pieces) or 1
    before = 0
    for piece in pieces:
        with skipping(source, piece.file, broken), as_broken(piece.file.place, "Parquet"):
            for row, (text, metadata), done in _parquet_rows(piece, source, broken):
                done = min(1.0, (before + done * piece.size) / total)
                yield Raw(f"{piece.file.name}#{row}", text, done, metadata)
        before += piece.size


def _parquet_rows(
    piece: Piece, source: ParquetSource, broken: Broken | None
) -> Iterator[tuple[int, tuple[bytes, str], float]]:
    """Each row's number in the file, its document and metadata, and the fraction of the piece read. Row groups are
    compressed separately: the rows before the damage in a broken one are read."""
    path, columns = piece.file.place, [source.text_field, *source.metadata]
    with parquet_file(piece.file) as file:
        _refuse_columns(path, file.schema_arrow, source)
        sizes = [file.metadata.row_group(group).num_rows for group in range(file.metadata.num_row_groups)]
        first = sum(sizes[: piece.start])
        number = sum(sizes[piece.start : piece.end])
        start = first
        for group in range(len(sizes))[piece.start : piece.end]:
            row = start
            try:
                with as_broken(f"{path}, row group {group}", "Parquet", BrokenRecord):
                    for batch in file.iter_batches(batch_size=ROWS, row_groups=[group], columns=columns):
                        for content in _contents(batch, source):
                            refuse_large(len(content[0]), source.max_bytes(), f"{path}, row {row}")
                            yield row, content, (row + 1 - first) / number
                            row += 1
            except BrokenRecord as error:
                note_broken(source, piece.file, broken, error, start + sizes[group] - row)
            start += sizes[group]


def read_arrow(source: ArrowSource, pieces: Sequence[Piece], broken: Broken | None) -> Iterator[Raw]:
    """Read documents, which are named by their row in the file: "pages.arrow#17"."""
    total = sum(piece.size for piece in pieces) or 1
    before = 0
    for piece in pieces:
        item = piece.file
        with skipping(source, item, broken), as_broken(item.place, "Arrow"), item.open() as file:
            reader, row = arrow_reader(file), 0
            _refuse_columns(item.place, reader.schema, source)
            for batch in _batches(reader):
                for text, metadata in _contents(batch, source):
                    refuse_large(len(text), source.max_bytes(), f"{item.place}, row {row}")
                    yield Raw(f"{item.name}#{row}", text, min(1.0, (before + file.tell()) / total), metadata)
                    row += 1
        before += piece.size


def arrow_reader(file: IO[bytes]) -> pa.RecordBatchFileReader | pa.RecordBatchStreamReader:
    """A reader of Arrow's file format, or of its streams, such as `save_to_disk` writes."""
    magic = file.read(len(ARROW_FILE))
    file.seek(0)
    return pa.ipc.open_file(file) if magic == ARROW_FILE else pa.ipc.open_stream(file)


def _batches(reader: pa.RecordBatchFileReader | pa.RecordBatchStreamReader) -> Iterator[pa.RecordBatch]:
    if isinstance(reader, pa.RecordBatchFileReader):
        yield from (reader.get_batch(number) for number in range(reader.num_record_batches))
    else:
        yield from reader


def _contents(batch: pa.RecordBatch, source: ParquetSource | ArrowSource) -> Iterator[tuple[bytes, str]]:
    """Each row's document, empty for null, and its metadata."""
    texts = (value.as_py() or b"" for value in _binary(batch.column(source.text_field)))
    if not source.metadata:
        yield from ((text, "") for text in texts)
        return
    for text, record in zip(texts, rows_of(batch.select(source.metadata)), strict=True):
        yield text, chosen_fields(record, source.metadata)


def _refuse_columns(path: str, schema: pa.Schema, source: ParquetSource | ArrowSource) -> None:
    """Raise StageError if a column is missing, or the documents' column is not text."""
    for name, column in ("text_field", source.text_field), *(("metadata", each) for each in source.metadata):
        if column not in schema.names:
            raise StageError(f"{path}: no column {column!r}; it has {listed(schema.names)}. Set {name}.")
        if schema.names.count(column) > 1:
            raise StageError(f"{path}: has several columns {column!r}: give them different names")
    column = source.text_field
    kind = schema.field(column).type
    if not _is_text(kind):
        raise StageError(f"{path}: column {column!r} is {kind}, not text; set text_field to a text column")


def _binary(values: pa.Array) -> pa.Array:
    return (values.dictionary_decode() if pa.types.is_dictionary(values.type) else values).cast(pa.large_binary())


def _is_text(kind: pa.DataType) -> bool:
    value = kind.value_type if pa.types.is_dictionary(kind) else kind
    return any(
        check(value)
        for check in (
            pa.types.is_string,
            pa.types.is_large_string,
            pa.types.is_string_view,
            pa.types.is_binary,
            pa.types.is_large_binary,
        )
    )
