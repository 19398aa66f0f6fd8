"""Read JSON Lines, plain or compressed, all of a file or a range of its bytes."""

import io
import json
import re
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import IO, Any

import orjson
import pyarrow as pa

from baton.infra.storage.address import File
from baton.infra.storage.unique_keys import unique
from baton.tasks.core.job import StageError
from baton.tasks.data.partitions import Piece
from baton.tasks.data.readers.raw import (
    Broken,
    BrokenFile,
    BrokenRecord,
    Raw,
    chosen_fields,
    note_broken,
    refuse_large,
    skipping,
)
from baton.tasks.data.source_spec import LARGEST_MB, JsonlSource, listed

_EXACT = json.JSONDecoder(object_pairs_hook=unique)
READ_BYTES = 1 << 20  # bytes of a skipped line that are read at a time
PLACE_LINES = 16  # lines between two queries of the place in the file
FIRST = 100  # records that are read before a run


def first_jsonl_record(source: File, most: int, skip: bool = False) -> dict[str, Any]:
    """The first record of a .jsonl(.gz|.zst) file that is UTF-8; with `skip`, the first of some records that is not
    broken. Raises StageError if there is none, or its line has more than `most` bytes."""
    fault = StageError(f"{source.place}: has no JSON object; remove the file")
    with source.open() as file:
        for number, line in islice(lines_of(Piece(source), file, most), FIRST if skip else None):
            try:
                return _record(source.place, number, line, parsed)
            except UnicodeDecodeError:
                continue  # the corpus engine counts and skips it
            except BrokenRecord as error:
                fault = error
                if not skip:
                    break
    raise fault


def first_jsonl_fields(source: File, most: int) -> list[str]:
    """The fields that the first records have, as far as they can be read."""
    names: dict[str, None] = {}
    with source.open() as file, suppress(StageError):
        for number, line in islice(lines_of(Piece(source), file, most), FIRST):
            with suppress(BrokenRecord, UnicodeDecodeError):
                names |= dict.fromkeys(_record(source.place, number, line, parsed))
    return list(names)


def jsonl_records(source: File) -> Iterator[dict[str, Any]]:
    """All records of a .jsonl(.gz|.zst) file. Raises StageError."""
    with source.open() as file:
        for number, line in lines_of(Piece(source), file, int(LARGEST_MB * 1e6)):
            try:
                yield _record(source.place, number, line, exactly)
            except UnicodeDecodeError as error:
                raise BrokenRecord(f"{source.place}, line {number}: not UTF-8; save the file as UTF-8") from error


def read_jsonl(source: JsonlSource, pieces: Sequence[Piece], broken: Broken | None) -> Iterator[Raw]:
    """Read documents, which are named by their line's number: "pages.jsonl#17", counted from a range's first byte if
    that is not the file's: "pages.jsonl@268435456#17"."""
    total = sum(piece.size for piece in pieces) or 1
    key, escaped = orjson.dumps(source.text_field), _escaped(source.text_field)
    before = 0
    for piece in pieces:
        if piece.copy:
            first, read, skipped = "", Piece(piece.copy), piece.start
        else:
            first, read, skipped = f"@{piece.start}" if piece.start else "", piece, 0
        name, place = f"{piece.file.name}{first}", f"{piece.file.place}{first}"
        done = before / total
        with skipping(source, piece.file, broken), read.file.open() as file:
            for number, line in lines_of(read, file, source.max_bytes()):
                if number % PLACE_LINES == 0:
                    done = min(1.0, (before + file.tell() - read.start) / total)
                try:
                    parse = exactly if source.metadata or escaped.search(line) else parsed
                    text, metadata = _content(source, parse, key, place, skipped + number, line)
                except BrokenRecord as error:
                    note_broken(source, piece.file, broken, error)
                    continue
                yield Raw(f"{name}#{skipped + number}", text, done, metadata)
        before += piece.size


def _escaped(name: str) -> re.Pattern[bytes]:
    """A pattern for escapes of a name's characters: with these, a line may have the name twice, only once unescaped."""
    codes = {f"{ord(character):04x}" for character in name if ord(character) < 0x10000}
    return re.compile(rf"\\u({'|'.join(sorted(codes))})".encode(), re.IGNORECASE)


def _content(
    source: JsonlSource, parse: Callable[[bytes], Any], key: bytes, path: str, number: int, line: bytes
) -> tuple[bytes, str]:
    """A line's document, the line itself if it is not UTF-8, and its metadata. `key`: the text field's name in JSON."""
    try:
        record = _record(path, number, line, parse)
        text = record.get(source.text_field)
        content = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else b""
        # orjson keeps the last of several texts, which is no shorter in JSON: the others' keys are before its content
        if line.count(key, 0, len(line) - len(content)) > 1:
            _record(path, number, line, exactly)
    except UnicodeDecodeError:
        return line, ""
    if isinstance(text, str) or (text is None and source.text_field in record):
        return content, chosen_fields(record, source.metadata) if source.metadata else ""
    wrong = f"the text is a {type(text).__name__}" if source.text_field in record else ""
    raise BrokenRecord(
        f"{path}, line {number}: {wrong or f'no field {source.text_field!r}'}; it has {listed(list(record))}. "
        "Set text_field to a field with text, remove the file, or set on_broken: skip"
    )


def lines_of(piece: Piece, file: IO[bytes], most: int) -> Iterator[tuple[int, bytes]]:
    """The nonblank lines that begin in the piece with their numbers, without byte order marks, decompressed by the
    file's suffix. Reads at most `most` bytes of a line, plus its end. Raises BrokenFile at damage, after the lines
    before it."""
    path = piece.file.place
    stream = text_of(file, path)
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
        if number == 1 and not piece.start and line.startswith((BOM_UTF16_LE, BOM_UTF16_BE)):
            raise BrokenFile(f"{path}: is UTF-16, by its byte order mark; convert it: iconv -f UTF-16 -t UTF-8")
        if len(line) > most:
            refuse_large(len(line.rstrip(b"\r\n")), most, f"{path}, line {number}")
        if not line.isspace():
            yield number, line.removeprefix(BOM_UTF8)  # also within a file, of parts that were put together


def text_of(file: IO[bytes], path: str) -> IO[bytes]:
    """Open a file's text, decompressed by its suffix. Reading raises OSError, pa.ArrowException."""
    compression = {".gz": "gzip", ".zst": "zstd"}.get(path[path.rfind(".") :])
    return io.BufferedReader(_Decompressed(file, compression), 1 << 18) if compression else file


class _Decompressed(io.RawIOBase):
    """A compressed file's content. A damaged file gives all content before the damage, then an error; Arrow's stream by
    itself would lose the content of its buffers, which for a small file is everything."""

    def __init__(self, file: IO[bytes], compression: str) -> None:
        self._file, self._compression = file, compression
        self._streams = [self._opened()]  # kept: one that is dropped closes the file
        self._place = 0
        self._rest: IO[bytes] | None = None  # the rest of a damaged file
        self._damage: Exception = EOFError()

    def _opened(self) -> pa.CompressedInputStream:
        return pa.CompressedInputStream(pa.PythonFile(self._file, "r"), self._compression)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if self._rest is None:
            try:
                content = self._streams[0].read(len(buffer))
            except (OSError, pa.ArrowException) as error:
                self._rest, self._damage = io.BytesIO(self._before_damage(len(buffer))), error
        if self._rest is not None and not (content := self._rest.read(len(buffer))):
            raise self._damage
        buffer[: len(content)] = content
        self._place += len(content)
        return len(content)

    def _before_damage(self, most: int) -> bytes:
        """The rest before the damage, up to `most` bytes, read again and byte by byte."""
        self._file.seek(0)
        self._streams.append(stream := self._opened())
        content = bytearray()
        with suppress(OSError, pa.ArrowException):
            for start in range(0, self._place, most):
                stream.read(min(most, self._place - start))
            while len(content) < most and (byte := stream.read(1)):
                content += byte
        return bytes(content)


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


def _record(path: str, number: int, line: bytes, parse: Callable[[bytes], Any]) -> dict[str, Any]:
    """Parse a line. Raises BrokenRecord if it is not a JSON object, UnicodeDecodeError if it is not UTF-8."""
    try:
        record = parse(line)
    except UnicodeDecodeError:
        raise
    except (ValueError, RecursionError) as error:  # ValueError: also integers with too many digits
        message = f"{path}, line {number}: not JSON ({error}); fix or remove it, or set on_broken: skip"
        raise BrokenRecord(message) from error
    if not isinstance(record, dict):
        raise BrokenRecord(f"{path}, line {number}: must be a JSON object, not {type(record).__name__}")
    return record


def parsed(line: bytes) -> Any:
    """Parse a line five times as fast as Python's `json`. The last value of a repeated key is kept, and integers above
    64 bits become floats. A line that orjson refuses, as for NaN and lone surrogates, is parsed exactly."""
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError:
        return exactly(line)


def exactly(line: bytes) -> Any:
    """Parse a line, with integers of any size. Raises ValueError, also for a key that occurs twice."""
    return _EXACT.decode(line.decode())
