"""Read the documents of WARC and WET files (ISO 28500), the formats of web crawls.

In a WET file, each `conversion` record is a document. In a WARC file, each `response` with status 200 is one: plain
text as it is, and the text of HTML by Resiliparse, which DataComp-LM chose (Li et al., 2024); its result depends only
on the page. Other records, other types of content and pages of an unknown type are passed over.
"""

import io
import zlib
from collections.abc import Iterator, Sequence
from typing import IO, Any, NamedTuple, cast

from fastwarc.warc import ArchiveIterator, WarcRecord, WarcRecordType
from resiliparse.extract.html2text import extract_plain_text
from resiliparse.parse.encoding import bytes_to_str, detect_encoding
from resiliparse.parse.html import HTMLTree

from baton.infra.storage.address import File
from baton.tasks.data.partitions import Piece
from baton.tasks.data.readers.http_body import decoded
from baton.tasks.data.readers.raw import Broken, BrokenFile, BrokenRecord, Raw, refuse_large, skipping
from baton.tasks.data.readers.warc_records import Members, Records, Truncated
from baton.tasks.data.source_spec import WarcSource

HTML = ("text/html", "application/xhtml+xml")
PLAIN = "text/plain"
DAMAGED = (Truncated, OSError, EOFError, zlib.error)
PARTIAL = ("WARC-Truncated", "WARC-Segment-Number")  # fields of a record that lacks a part of its content


class BoundedFile(io.RawIOBase):
    """A file, from its current position, as if it ended at `end`."""

    def __init__(self, file: IO[bytes], end: int) -> None:
        self._file, self._end = file, end

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._file.tell()

    def readinto(self, buffer: Any) -> int:
        content = self._file.read(min(len(buffer), self._end - self._file.tell()))
        buffer[: len(content)] = content
        return len(content)


class Document(NamedTuple):
    """A document that is not decoded yet."""

    name: str  # WARC-Record-ID and address
    size: int  # bytes of its content
    record: WarcRecord  # without its content if that is too large for a document


def read_warc(source: WarcSource, pieces: Sequence[Piece], broken: Broken | None) -> Iterator[Raw]:
    """Read documents, which are named by their record and address: "crawl.warc.gz#d4b8…-… https://example.com/"."""
    total = sum(piece.size for piece in pieces) or 1
    before = 0
    for piece in pieces:
        item, most = piece.file, source.max_bytes()
        with skipping(source, item, broken), item.open() as file:
            file.seek(piece.start)
            part = file if piece.end is None else io.BufferedReader(BoundedFile(file, piece.end))
            for found in _documents(part, item, most):
                with skipping(source, item, broken):
                    if isinstance(found, BrokenFile):
                        raise found
                    where = f"{item.place}, record {found.name}"
                    text = _text(found.record, source.main_content, where)
                    refuse_large(found.size, most, where)
                    done = min(1.0, (before + file.tell() - piece.start) / total)
                    yield Raw(f"{item.name}#{found.name}", text, done)
        before += piece.size


def _documents(file: IO[bytes], item: File, most: int) -> Iterator[Document | BrokenFile]:
    """The documents, with errors in place of damaged ones. After a damaged record, reading continues at the next gzip
    member that begins with a record; if there is none, the error is that of the file."""
    members = Members(file) if item.name.endswith(".gz") else None
    name, continues = "", True
    while continues:
        stream = io.BufferedReader(members) if members else file
        damage: Exception | None = None
        try:
            for found in _in_stream(stream, item, most):
                name = found.name if isinstance(found, Document) else name
                yield found
        except DAMAGED as error:
            damage = error
        if members:
            cast(io.BufferedReader, stream).detach()  # the buffer belongs to the damaged record
            damage = damage or members.damage
        continues = members is not None and members.advance()
        if damage:
            where = f"{item.place}, after record {name}" if name else item.place
            advice = "download it again, or set on_broken: skip"
            kind = BrokenRecord if continues else BrokenFile
            yield kind(f"{where}: damaged or truncated ({damage}); {advice}{' to leave the record out' * continues}")


def _in_stream(stream: IO[bytes], item: File, most: int) -> Iterator[Document | BrokenFile]:
    """The documents of a stream of complete records, without their content if that is more than `most` bytes, and the
    errors of records whose length differs from their Content-Length. Raises those of DAMAGED."""
    records = Records(stream)
    kinds = WarcRecordType.conversion | WarcRecordType.response
    while stored := records.next():
        # record_types: only the head of other records is read
        found = next(iter(ArchiveIterator(stored, record_types=kinds, parse_http=False, fsspec_args=False)), None)
        size = stored.length
        if found and size > most:  # quirks_mode: the lines of a head may end in a bare LF (RFC 9112)
            found.parse_http(quirks_mode=True)  # reads only the head
            size = found.content_length
        elif found:
            found.freeze()
            found.parse_http(max_header_len=size, quirks_mode=True)
        wrong = records.finish(stored)
        if found and _is_document(found):
            name = (found.record_id or "").strip("<>").removeprefix("urn:uuid:")
            name = f"{name} {found.headers.get('WARC-Target-URI', '')}".rstrip()
            if wrong:
                yield BrokenRecord(f"{item.place}, record {name}: {wrong}; set on_broken: skip to leave it out")
            else:
                yield Document(name, size, found)


def _is_document(record: WarcRecord) -> bool:
    if record.record_type == WarcRecordType.conversion:
        return True
    head = record.http_headers
    return head is not None and head.status_code == 200 and _media_type(record) in (*HTML, PLAIN)


def _media_type(record: WarcRecord) -> str:
    """The media type in lower case, since case has no meaning (RFC 9110); the crawler's guess if the page has none."""
    return str(record.http_content_type or record.headers.get("WARC-Identified-Payload-Type", "")).lower()


def _text(record: WarcRecord, main_content: bool, where: str) -> bytes:
    """The text of a record, in UTF-8, or unchanged in a WET file. Raises BrokenRecord if the record is marked as
    truncated or a segment, or the page is not in the codings of its head."""
    for field in PARTIAL:
        if value := record.headers.get(field):
            raise BrokenRecord(f"{where}: not a whole document ({field}: {value}); set on_broken: skip to leave it out")
    content = bytes(record.reader.read())
    if record.record_type == WarcRecordType.conversion:
        return content
    try:
        content = decoded(content, record.http_headers)
    except (OSError, ValueError) as error:
        message = f"{where}: not encoded as its head says, or truncated ({error}); set on_broken: skip to leave it out"
        raise BrokenRecord(message) from error
    is_html = _media_type(record) in HTML
    encoding = record.http_charset or detect_encoding(content, from_html_meta=is_html) or "utf-8"
    if not is_html:
        return bytes_to_str(content, encoding).encode("utf-8", "surrogatepass")
    tree = HTMLTree.parse_from_bytes(content, encoding)
    return extract_plain_text(tree, main_content=main_content).encode("utf-8", "surrogatepass")
