"""Find where a WARC or WET file can be cut: between records, and in a `.gz` where a member begins with a record.

The file is read from its beginning by the parser that reads its documents, so that a record in the content of another
one is not taken for one of the file.
"""

import zlib
from collections.abc import Iterator
from typing import IO, Any

from fastwarc.warc import ArchiveIterator

from infra.storage.address import File
from tasks.data.readers.warc import Truncated
from tasks.data.rounds import Amount, Report

READ_BYTES = 1 << 16


def piece_starts(item: File, target: int, report: Report) -> list[int]:
    """The offsets in the file at which its pieces of about `target` bytes begin: only 0 if it cannot be cut; empty if
    it is damaged."""
    starts = [0]
    try:
        with item.open() as file:
            for number, start in enumerate(_record_starts(file, item.name.endswith(".gz")), 1):
                if start - starts[-1] >= target:
                    starts.append(start)
                report(file.tell() / item.size, Amount(number, 0))
    except (Truncated, OSError, EOFError, zlib.error):
        return []
    return starts


def _record_starts(file: IO[bytes], compressed: bool) -> Iterator[int]:
    """The offsets of the records from which on the file can be read. Raises Truncated, OSError (not a WARC file),
    EOFError, zlib.error."""
    members = Members(file)
    stream: Any = members if compressed else file
    for record in ArchiveIterator(stream, parse_http=False, fsspec_args=False):
        start = members.start_at(record.stream_pos) if compressed else record.stream_pos
        if start is not None:
            yield start
        if "Content-Length" not in record.headers or record.consume() < record.content_length:
            raise Truncated(f"record {record.record_id} has less than its Content-Length")


class Members:
    """A gzip file's content as a stream that knows where the file's members begin."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._input = b""  # not decompressed yet
        self._ends = [0, 0]  # of what was read of the file, and of the content
        self._member: Any = None  # a decompressor, if one has begun
        self._starts: dict[int, int] = {}  # of members: in the content, in the file

    def read(self, size: int) -> bytes:
        """Up to so many bytes; none at the end."""
        while self._input or self._fill():
            if self._member is None:
                self._member = zlib.decompressobj(zlib.MAX_WBITS | 16)
                self._starts[self._ends[1]] = self._ends[0] - len(self._input)
            content: bytes = self._member.decompress(self._input, size)
            self._input = self._member.unconsumed_tail
            if self._member.eof:
                self._input, self._member = self._member.unused_data, None
            if content:
                self._ends[1] += len(content)
                return content
        if self._member:
            raise EOFError("the last member has no end")
        return b""

    def tell(self) -> int:
        return self._ends[1]

    def start_at(self, place: int) -> int | None:
        """Where the member begins whose content begins at `place`, if one does; earlier ones are forgotten."""
        self._starts = {start: member for start, member in self._starts.items() if start >= place}
        return self._starts.get(place)

    def _fill(self) -> bool:
        self._input = self._file.read(READ_BYTES)
        self._ends[0] += len(self._input)
        return bool(self._input)
