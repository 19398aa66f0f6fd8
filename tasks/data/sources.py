"""Read the eight kinds of source, one document at a time, as raw bytes.

Bytes, because the corpus engine checks whether they are UTF-8. Text from JSON may have lone surrogates; it is encoded
with "surrogatepass", which yields invalid UTF-8.
"""

import io
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any, NamedTuple

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from infra.placement.address import File, digest_of, find
from infra.placement.storage import is_bucket
from tasks.data.partitions import Piece, whole
from tasks.data.source_spec import (
    LARGEST_MB,
    AnySource,
    ArrowSource,
    FilesSource,
    FunctionSource,
    HuggingFaceSource,
    JsonlSource,
    ParquetSource,
    StdlibSource,
    WarcSource,
    json_at,
    listed,
)
from tasks.job import StageError
from tasks.load_function import described

ROWS = 32  # Parquet rows in memory at a time
ARROW_FILE = b"ARROW1"
PAGES_BYTES = 1 << 20  # of a column, or of a line to skip, read at a time


class BrokenFile(StageError):
    """A file is damaged, truncated or not in its format."""


class Raw(NamedTuple):
    """One document as found in the source."""

    source: str
    text: bytes
    done: float  # fraction of the source that has been read; 0 if unknown


def read_source(
    source: AnySource, broken: list[str] | None = None, pieces: Sequence[Piece] | None = None
) -> Iterator[Raw]:
    """The source's documents in a fixed order, or those of some `pieces` of it. With `on_broken: skip` and a list
    `broken`, what is wrong with each broken file is added to it, and the documents before the damage are kept. Raises
    StageError, OSError."""
    match source:
        case HuggingFaceSource():
            return _read_hugging_face(source)
        case FunctionSource():
            return _read_function(source)
    chosen = whole(source.files()) if pieces is None else pieces
    match source:
        case StdlibSource():
            return _read_files(chosen, int(LARGEST_MB * 1e6))
        case FilesSource():
            return _read_files(chosen, source.max_bytes())
        case JsonlSource():
            return _read_jsonl(source, chosen, broken)
        case ParquetSource():
            return _read_parquet(source, chosen, broken)
        case ArrowSource():
            return _read_arrow(source, chosen, broken)
        case WarcSource():
            return _read_warc(source, chosen, broken)


def _read_function(source: FunctionSource) -> Iterator[Raw]:
    """The documents of a user's function, which runs in this process."""
    name, number = source.function.name, 0
    with TemporaryDirectory() as folder:
        function = source.function.load(Path(folder))
        try:
            for number, text in enumerate(function(**source.arguments), start=1):
                where = f"{source.function.attribute}#{number}"
                found = _encoded(text, where)
                _refuse_large(len(found), source.max_bytes(), where)
                yield Raw(where, found, 0.0)
        except StageError:
            raise
        except Exception as error:  # user code can raise anything
            raise StageError(f"{name}, after document {number}: {described(error, Path(folder))}") from error


def first_jsonl_record(source: File, most: int) -> dict[str, Any]:
    """The first record of a .jsonl(.gz|.zst) file that is UTF-8. Raises StageError if there is none, or its line has
    more than `most` bytes."""
    with source.open() as file:
        for number, line in lines_of(Piece(source), file, most):
            try:
                return _record(source.place, number, line)
            except UnicodeDecodeError:
                continue  # the corpus engine counts and skips it
    raise StageError(f"{source.place}: has no JSON object; remove the file")


def jsonl_records(source: File) -> Iterator[dict[str, Any]]:
    """All records of a .jsonl(.gz|.zst) file. Raises StageError."""
    with source.open() as file:
        for number, line in lines_of(Piece(source), file, int(LARGEST_MB * 1e6)):
            yield _record(source.place, number, line)


def parquet_records(source: File) -> Iterator[dict[str, Any]]:
    """All rows of a Parquet file. Raises StageError."""
    with _as_broken(source, "Parquet"), source.open() as opened, pq.ParquetFile(opened) as file:
        for batch in file.iter_batches(batch_size=ROWS):
            yield from batch.to_pylist()


def _read_files(pieces: Sequence[Piece], most: int) -> Iterator[Raw]:
    total = sum(piece.size for piece in pieces) or 1
    done = 0
    for piece in pieces:
        with piece.file.open() as file:
            text = file.read(most + 1)
        _refuse_large(len(text), most, piece.file.place)
        done += len(text)
        yield Raw(piece.file.name, text, min(1.0, done / total))


@contextmanager
def _skipping(
    source: JsonlSource | ParquetSource | ArrowSource | WarcSource, broken: list[str] | None
) -> Iterator[None]:
    """Note a broken file instead of raising, if the source says so and the reader counts them."""
    try:
        yield
    except BrokenFile as error:
        if source.on_broken == "stop" or broken is None:
            raise
        broken.append(str(error))


def _read_jsonl(source: JsonlSource, pieces: Sequence[Piece], broken: list[str] | None) -> Iterator[Raw]:
    """Documents are named by their line's number: "pages.jsonl#17", counted from a range's first byte if it is not the
    file's: "pages.jsonl@268435456#17"."""
    total = sum(piece.size for piece in pieces) or 1
    before = 0
    for piece in pieces:
        if piece.copy:
            first, read, skipped = "", Piece(piece.copy), piece.start
        else:
            first, read, skipped = f"@{piece.start}" if piece.start else "", piece, 0
        name, place = f"{piece.file.name}{first}", f"{piece.file.place}{first}"
        with _skipping(source, broken), read.file.open() as file:
            for number, line in lines_of(read, file, source.max_bytes()):
                done = min(1.0, (before + file.tell() - read.start) / total)
                text = _line_text(source, place, skipped + number, line)
                yield Raw(f"{name}#{skipped + number}", text, done)
        before += piece.size


def _line_text(source: JsonlSource, path: str, number: int, line: bytes) -> bytes:
    """The document of a line; the line itself if it is not UTF-8."""
    try:
        record = _record(path, number, line)
    except UnicodeDecodeError:
        return line
    text = record.get(source.text_field)
    if isinstance(text, str):
        return text.encode("utf-8", "surrogatepass")
    if source.text_field not in record:
        raise StageError(
            f"{path}, line {number}: no field {source.text_field!r}; it has {listed(list(record))}. "
            "Set text_field, or remove the file."
        )
    return _encoded(text, f"{path}, line {number}")


def lines_of(piece: Piece, file: IO[bytes], most: int) -> Iterator[tuple[int, bytes]]:
    """The nonblank lines that begin in the piece with their numbers, decompressed by the file's suffix. Reads at most
    `most` bytes of a line, plus its end."""
    path = piece.file.place
    compression = {".gz": "gzip", ".zst": "zstd"}.get(path[path.rfind(".") :])
    stream: IO[bytes] = file
    if compression is not None:
        stream = io.BufferedReader(pa.CompressedInputStream(pa.PythonFile(file), compression), 1 << 18)
    number, left = 0, None if piece.end is None else piece.end - _next_line(stream, piece.start)
    while left is None or left > 0:
        try:
            line = stream.readline(most + 2)  # the line's end does not count
        except (OSError, pa.ArrowException) as error:
            where = f"{path}, after line {number}"
            message = f"{where}: damaged or truncated ({error}); download it again, or set on_broken: skip"
            raise BrokenFile(message) from error
        if not line:
            return
        if left is not None:
            left -= len(line)
        number += 1
        if len(line) > most:
            _refuse_large(len(line.rstrip(b"\r\n")), most, f"{path}, line {number}")
        if not line.isspace():
            yield number, line


def _next_line(stream: IO[bytes], start: int) -> int:
    """Move to the first line that begins at `start` or after it; returns its place."""
    if start == 0:
        return 0
    place = stream.seek(start - 1)
    while skipped := stream.readline(PAGES_BYTES):  # in parts, since a line may have any length
        place += len(skipped)
        if skipped.endswith(b"\n"):
            break
    return place


def _record(path: str, number: int, line: bytes) -> dict[str, Any]:
    """Parse a line. Raises StageError if it is not a JSON object, UnicodeDecodeError if it is not UTF-8."""
    try:
        record = parsed(line)
    except UnicodeDecodeError:
        raise
    except (ValueError, RecursionError) as error:  # ValueError: also integers with too many digits
        raise BrokenFile(f"{path}, line {number}: not JSON ({error}); fix it or remove the file") from error
    if not isinstance(record, dict):
        raise BrokenFile(f"{path}, line {number}: must be a JSON object, not {type(record).__name__}")
    return record


def parsed(line: bytes) -> Any:
    """The line's value. What orjson refuses and Python's own parser does not (NaN, lone surrogates, integers of any
    size) is left to that, and all errors are its own."""
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError:
        return json.loads(line.decode())


def _refuse_large(size: int, most: int, where: str) -> None:
    if size > most:
        raise StageError(
            f"{where}: larger than max_document_mb = {most / 1e6:g} MB. Raise it (takes more memory), split the "
            "document, or remove it."
        )


def _encoded(text: Any, where: str) -> bytes:
    """A document's bytes; None is an empty document. Raises StageError for other types."""
    if text is None:
        return b""
    if isinstance(text, bytes):
        return text
    if not isinstance(text, str):
        raise StageError(f"{where}: the text is a {type(text).__name__}; choose a text_field that holds text")
    return text.encode("utf-8", "surrogatepass")


def _read_parquet(source: ParquetSource, pieces: Sequence[Piece], broken: list[str] | None) -> Iterator[Raw]:
    total = sum(piece.size for piece in pieces) or 1
    before = 0
    for piece in pieces:
        with _skipping(source, broken), _as_broken(piece.file, "Parquet"):
            for row, text, done in _parquet_texts(piece, source.text_field, source.max_bytes()):
                yield Raw(f"{piece.file.name}#{row}", text, min(1.0, (before + done * piece.size) / total))
        before += piece.size


def _read_arrow(source: ArrowSource, pieces: Sequence[Piece], broken: list[str] | None) -> Iterator[Raw]:
    total = sum(piece.size for piece in pieces) or 1
    before = 0
    for piece in pieces:
        item = piece.file
        with _skipping(source, broken), _as_broken(item, "Arrow"), item.open() as file:
            reader, row = arrow_reader(file), 0
            _refuse_column(item.place, reader.schema, source.text_field)
            for batch in _batches(reader):
                for value in _binary(batch.column(source.text_field)):
                    text = value.as_py() or b""
                    _refuse_large(len(text), source.max_bytes(), f"{item.place}, row {row}")
                    yield Raw(f"{item.name}#{row}", text, min(1.0, (before + file.tell()) / total))
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


def _read_warc(source: WarcSource, pieces: Sequence[Piece], broken: list[str] | None) -> Iterator[Raw]:
    """Documents are named by their record and address: "crawl.warc.gz#d4b8…-… https://example.com/"."""
    from tasks.data.warc import Truncated, read_warc  # native parsers, which other sources do not need

    total = sum(piece.size for piece in pieces) or 1
    before = 0
    for piece in pieces:
        item, name = piece.file, ""
        with _skipping(source, broken), item.open() as file:
            try:
                most, compressed = source.max_bytes(), item.name.endswith(".gz")
                for name, size, text in read_warc(file, compressed, most, source.main_content):
                    _refuse_large(size, most, f"{item.place}, record {name}")
                    yield Raw(f"{item.name}#{name}", text, min(1.0, (before + file.tell()) / total))
            except (Truncated, OSError, EOFError) as error:
                where = f"{item.place}, after record {name}" if name else item.place
                message = f"{where}: damaged or truncated ({error}); download it again, or set on_broken: skip"
                raise BrokenFile(message) from error
        before += piece.size


@contextmanager
def _as_broken(item: File, kind: str) -> Iterator[None]:
    try:
        yield
    except pa.ArrowInvalid as error:
        message = f"{item.place}: not readable as {kind} ({error}); download it again, or set on_broken: skip"
        raise BrokenFile(message) from error


def _parquet_texts(piece: Piece, column: str, most: int) -> Iterator[tuple[int, bytes, float]]:
    """One column's rows: their number in the file, their value and the fraction of the piece read. Values are binary,
    since Parquet strings may not be valid UTF-8."""
    path = piece.file.place
    # both options are needed: with either default, a whole row group is in memory
    with piece.file.open() as opened, pq.ParquetFile(opened, buffer_size=PAGES_BYTES, pre_buffer=False) as file:
        _refuse_column(path, file.schema_arrow, column)
        sizes = [file.metadata.row_group(group).num_rows for group in range(file.metadata.num_row_groups)]
        row = first = sum(sizes[: piece.start])
        number = sum(sizes[piece.start : piece.end])
        groups = range(len(sizes))[piece.start : piece.end]
        for batch in file.iter_batches(batch_size=ROWS, row_groups=groups, columns=[column]):
            for value in _binary(batch.column(0)):
                text = value.as_py() or b""
                _refuse_large(len(text), most, f"{path}, row {row}")
                yield row, text, (row + 1 - first) / number
                row += 1


def _refuse_column(path: str, schema: pa.Schema, column: str) -> None:
    """Raises StageError if the column is not there, or is not text."""
    if column not in schema.names:
        raise StageError(f"{path}: no column {column!r}; it has {listed(schema.names)}. Set text_field.")
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


def _read_hugging_face(source: HuggingFaceSource) -> Iterator[Raw]:
    rows, count = _saved(source) if _is_at_an_address(source) else open_hugging_face(source)
    total = min(count or source.limit or 0, source.limit or count or 0)
    name = source.split if digest_of(source.name) else f"{source.name}/{source.split}"
    for row, record in enumerate(rows):
        if row == source.limit:
            return
        where = f"{name}#{row}"
        if source.text_field not in record:
            raise StageError(
                f"{where}: no column {source.text_field!r}; it has {listed(list(record))}. Set text_field."
            )
        text = _encoded(record[source.text_field], where)
        _refuse_large(len(text), source.max_bytes(), where)
        yield Raw(where, text, min(1.0, (row + 1) / total) if total else 0.0)


def _is_at_an_address(source: HuggingFaceSource) -> bool:
    return is_bucket(source.name) and not digest_of(source.name)


def _saved(source: HuggingFaceSource) -> tuple[Iterator[dict[str, Any]], int | None]:
    """The rows and row count of a dataset that `save_to_disk` wrote. Streamed: the datasets library would download it
    first."""
    place = source.name.rstrip("/")
    if json_at(f"{place}/dataset_dict.json") is not None:
        place = f"{place}/{source.split}"
    files = {file.name: file for file in find(place)}
    try:
        wanted = [files[item["filename"]] for item in json_at(f"{place}/state.json")["_data_files"]]
        about = json_at(f"{place}/dataset_info.json")
    except (KeyError, TypeError, ValueError) as error:
        raise StageError(f"dataset {source.name!r}: not in save_to_disk's format: {error!r:.200}") from error
    split = (about.get("splits") or {}).get(source.split) or {}
    return _arrow_rows(wanted), split.get("num_examples")


def _arrow_rows(files: list[File]) -> Iterator[dict[str, Any]]:
    for item in files:
        try:
            with item.open() as opened, pa.ipc.open_stream(opened) as stream:
                for batch in stream:
                    for start in range(0, len(batch), ROWS):
                        yield from batch.slice(start, ROWS).to_pylist()
        except pa.ArrowInvalid as error:
            raise StageError(f"{item.place}: not readable as Arrow ({error}); save the dataset again") from error


def open_hugging_face(source: HuggingFaceSource) -> tuple[Any, int | None]:
    """The dataset's rows and, if known, their number."""
    import datasets

    folder = source.folder()
    try:
        if folder and ((folder / "state.json").exists() or (folder / "dataset_dict.json").exists()):
            found = datasets.load_from_disk(str(folder))
            rows = found[source.split] if isinstance(found, datasets.DatasetDict) else found
        else:
            name = str(folder) if folder else source.name
            rows = datasets.load_dataset(name, source.config, split=source.split, streaming=source.streaming)
    except (OSError, ValueError, KeyError, datasets.exceptions.DatasetsError) as error:
        raise StageError(
            f"dataset {source.name!r}, config {source.config!r}, split {source.split!r}: {error}. "
            "Check name, config and split; a hub name needs a network (and HF_HUB_OFFLINE unset)."
        ) from error
    if not isinstance(rows, datasets.IterableDataset):
        return rows, len(rows)
    known = (rows.info.splits or {}).get(source.split)
    return rows, known.num_examples if known else None
