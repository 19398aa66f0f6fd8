"""The records of WARC and WET files, cut by their lengths, and the gzip members that they are in.

A wrong Content-Length is recognized by the bytes after the record, which must be two line ends and the next record, or
the end. If each record is a separate gzip member, as ISO 28500 recommends, reading continues at the next member.
"""

import io
import re
import zlib
from typing import IO, Any

MARK = b"WARC/"  # the beginning of a record
BETWEEN = b"\r\n\r\n"  # separates records
GZIP = b"\x1f\x8b\x08"  # the beginning of a member
READ_BYTES = 1 << 16
LONGEST_HEAD = 1 << 20  # bytes
_LENGTH = re.compile(rb"^content-length[ \t]*:[ \t]*([0-9]{1,18})[ \t]*\r?$", re.IGNORECASE | re.MULTILINE)
_ID = re.compile(rb"^warc-record-id[ \t]*:[ \t]*(.*?)[ \t]*\r?$", re.IGNORECASE | re.MULTILINE)


class Truncated(Exception):
    """A file ends within a record, or the length of a record differs from its Content-Length."""


class Record(io.RawIOBase):
    """One record as a separate stream, with the line ends after it."""

    def __init__(self, head: bytes, stream: IO[bytes], start: int) -> None:
        lengths = {int(length) for length in _LENGTH.findall(head)}
        if len(lengths) != 1:
            raise Truncated(f"{_name(head)} has {len(lengths) or 'no'} Content-Lengths")
        self.start = start  # in the file's content
        self.head = head
        (self.length,) = lengths
        self._left, self._stream, self._ends = self.length, stream, b""
        self._before, self._after, self._place = head, BETWEEN, 0

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._place

    def readinto(self, buffer: Any) -> int:
        if self._before:
            content, self._before = self._before[: len(buffer)], self._before[len(buffer) :]
        elif self._left:
            content = self._content(len(buffer))
        else:
            content, self._after = self._after[: len(buffer)], self._after[len(buffer) :]
        buffer[: len(content)] = content
        self._place += len(content)
        return len(content)

    def finish(self) -> bytes:
        """Skip the rest of the record; returns its last bytes. Raises Truncated."""
        while self._left:
            if not self._content(READ_BYTES):
                raise Truncated(f"{_name(self.head)} has {self.length - self._left} of {self.length} bytes")
        return self._ends

    def _content(self, size: int) -> bytes:
        content = self._stream.read(min(size, self._left))
        self._left -= len(content)
        self._ends = (self._ends + content[-len(BETWEEN) :])[-len(BETWEEN) :]
        return content


class Records:
    """The records of a stream, one after the other."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._line = self._next_line()[1]  # the first of the next record

    def next(self) -> Record | None:
        """The next record; None at the end. The previous one must be finished. Raises Truncated, OSError (not a WARC
        file)."""
        if not self._line:
            return None
        if not self._line.startswith(MARK):
            raise OSError("not a WARC record")
        start, head, line = self._stream.tell() - len(self._line), bytearray(), self._line
        while line.strip(b"\r\n"):
            head += line
            line = self._stream.readline(LONGEST_HEAD)
            if not line or len(head) > LONGEST_HEAD:
                raise Truncated(f"{_name(head)} has no end of its head")
        return Record(bytes(head + line), self._stream, start)

    def finish(self, record: Record) -> str:
        """Skip the rest of a record; returns the fault in its length, if the next record can be read nevertheless.
        Raises Truncated if not."""
        ends = record.finish()
        blank, self._line = self._next_line()
        if self._line and not self._line.startswith(MARK):
            raise Truncated(f"{_name(record.head)} has more than the {record.length} bytes of its Content-Length")
        if len(blank) < len(BETWEEN) and (ends + blank).endswith(BETWEEN):
            return f"it has fewer than the {record.length} bytes of its Content-Length"
        return ""

    def _next_line(self) -> tuple[bytes, bytes]:
        """The line ends up to the next line, and that line; empty at the end."""
        blank = b""
        while (line := self._stream.readline(LONGEST_HEAD)) and not line.strip(b"\r\n"):
            blank = (blank + line)[:LONGEST_HEAD]
        return blank, line


class Members(io.RawIOBase):
    """A gzip file's content as a stream that ends before each member that begins with a record, and before one that is
    damaged at its beginning. Reading raises zlib.error, and EOFError if the file is truncated."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._input = b""  # not decompressed yet
        self._ends = [0, 0]  # where the read parts of the file and of the content end
        self._member: Any = None  # a decompressor, if one has begun
        self._ready = b""  # content
        self._waits = False  # True before a member that begins with a record
        self._opening = False  # True while a member has no content yet
        self.damage: Exception | None = None  # the error at which it ends
        self._starts: dict[int, int] = {}  # start of a member in the content -> its start in the file

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._ends[1]

    def readinto(self, buffer: Any) -> int:
        if not self._waits and not self._ready and not self.damage:
            try:
                self._ready = self._more()
            except (zlib.error, EOFError) as error:
                self.damage = error
                if not self._opening:
                    raise  # the current record is damaged
        if self._waits:
            return 0
        content, self._ready = self._ready[: len(buffer)], self._ready[len(buffer) :]
        buffer[: len(content)] = content
        self._ends[1] += len(content)
        return len(content)

    def advance(self) -> bool:
        """Continue with the next member that begins with a record; returns whether there is one."""
        while not self._waits:
            self._ends[1] += len(self._ready)
            try:
                if isinstance(self.damage, zlib.error):
                    self._seek_member()
                self._ready = self._more()
            except zlib.error as error:
                self._ready, self.damage = b"", error
            except EOFError:
                return False
            if not self._ready and not self.damage:
                return False
        self._waits = False
        return True

    def start_at(self, place: int) -> int | None:
        """The start of the member whose content begins at `place`, if there is one; earlier members are forgotten."""
        self._starts = {start: member for start, member in self._starts.items() if start >= place}
        return self._starts.get(place)

    def _more(self) -> bytes:
        """The next content; empty at the end."""
        content = b""
        while self._input or self._fill():
            if self._member is None:
                self._input = self._input.lstrip(b"\0")  # some tools pad a block
                if not self._input:
                    continue
                self._member, self._opening = zlib.decompressobj(zlib.MAX_WBITS | 16), True
                self._starts[self._ends[1]] = start = self._ends[0] - len(self._input)
                content = self._decompressed()
                while len(content) < len(MARK) and self._member and (self._input or self._fill()):
                    content += self._decompressed()
                self._waits = start > 0 and content.startswith(MARK)
            else:
                content = self._decompressed()
            if content:
                self._opening = False
                return content
        if self._member:
            raise EOFError("the last member has no end")
        return b""

    def _decompressed(self) -> bytes:
        content: bytes = self._member.decompress(self._input, READ_BYTES)
        self._input = self._member.unconsumed_tail
        if self._member.eof:
            self._input, self._member = self._member.unused_data, None
        return content

    def _seek_member(self) -> None:
        """Drop input up to where the next member may begin, after a damaged one."""
        self._member, self.damage = None, None
        at = self._input.find(GZIP, 1)
        while at < 0:
            self._input = self._input[-len(GZIP) + 1 :]
            if not self._fill():
                self._input = b""
                return
            at = self._input.find(GZIP)
        self._input = self._input[at:]

    def _fill(self) -> bool:
        more = self._file.read(READ_BYTES)
        self._input += more
        self._ends[0] += len(more)
        return bool(more)


def _name(head: bytes | bytearray) -> str:
    found = _ID.search(head)
    return f"record {found[1].decode(errors='replace')}" if found else "a record without WARC-Record-ID"
