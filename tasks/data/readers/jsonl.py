"""Read JSON Lines, as they are or compressed, whole or a range of bytes."""

import io
import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import IO, Any

import orjson
import pyarrow as pa

from infra.placement.address import File
from tasks.data.partitions import Piece
from tasks.data.readers.raw import BrokenFile, Raw, chosen_fields, encoded, refuse_large, skipping
from tasks.data.source_spec import LARGEST_MB, JsonlSource, listed
from tasks.job import StageError

READ_BYTES = 1 << 20  # of a line to skip, at a time
PLACE_LINES = 16  # between two looks at the place in the file
FIRST = 100  # records that are looked at before a run


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


def first_jsonl_fields(source: File, most: int) -> list[str]:
    """The fields that the first records have, as far as they can be read."""
    found: dict[str, None] = {}
    with source.open() as file, suppress(StageError, UnicodeDecodeError):
        for number, line in islice(lines_of(Piece(source), file, most), FIRST):
            found |= dict.fromkeys(_record(source.place, number, line))
    return list(found)


def jsonl_records(source: File) -> Iterator[dict[str, Any]]:
    """All records of a .jsonl(.gz|.zst) file. Raises StageError."""
    with source.open() as file:
        for number, line in lines_of(Piece(source), file, int(LARGEST_MB * 1e6)):
            yield _record(source.place, number, line)


def read_jsonl(source: JsonlSource, pieces: Sequence[Piece], broken: list[str] | None) -> Iterator[Raw]:
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
        done = before / total
        with skipping(source, broken), read.file.open() as file:
            for number, line in lines_of(read, file, source.max_bytes()):
                if number % PLACE_LINES == 0:
                    done = min(1.0, (before + file.tell() - read.start) / total)
                text, metadata = _content(source, place, skipped + number, line)
                yield Raw(f"{name}#{skipped + number}", text, done, metadata)
        before += piece.size


def _content(source: JsonlSource, path: str, number: int, line: bytes) -> tuple[bytes, str]:
    """A line's document, the line itself if it is not UTF-8, and its metadata."""
    try:
        record = _record(path, number, line)
    except UnicodeDecodeError:
        return line, ""
    metadata = chosen_fields(record, source.metadata) if source.metadata else ""
    text = record.get(source.text_field)
    if isinstance(text, str):
        return text.encode("utf-8", "surrogatepass"), metadata
    if source.text_field not in record:
        raise StageError(
            f"{path}, line {number}: no field {source.text_field!r}; it has {listed(list(record))}. "
            "Set text_field, or remove the file."
        )
    return encoded(text, f"{path}, line {number}"), metadata


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
            refuse_large(len(line.rstrip(b"\r\n")), most, f"{path}, line {number}")
        if not line.isspace():
            yield number, line


def _next_line(stream: IO[bytes], start: int) -> int:
    """Move to the first line that begins at `start` or after it; returns its place."""
    if start == 0:
        return 0
    place = stream.seek(start - 1)
    while skipped := stream.readline(READ_BYTES):  # in parts, since a line may have any length
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
