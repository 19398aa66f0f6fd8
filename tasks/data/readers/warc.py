"""Read the documents of WARC and WET files (ISO 28500), the formats of web crawls.

Of a WET file, each `conversion` record is a document. Of a WARC file, each `response` with status 200 is one: plain
text as it is, and the text of HTML by Resiliparse, which DataComp-LM chose (Li et al., 2024); its result depends on
nothing but the page. Other records, other types of content and pages of an unknown type are passed over.
"""

import gzip
import io
from collections.abc import Iterator, Sequence
from typing import IO, Any, cast

from fastwarc.warc import ArchiveIterator, WarcRecord, WarcRecordType
from resiliparse.extract.html2text import extract_plain_text
from resiliparse.parse.encoding import bytes_to_str, detect_encoding
from resiliparse.parse.html import HTMLTree

from tasks.data.partitions import Piece
from tasks.data.readers.http_body import decoded
from tasks.data.readers.raw import Broken, BrokenFile, BrokenRecord, Raw, refuse_large, skipping
from tasks.data.source_spec import WarcSource

HTML = ("text/html", "application/xhtml+xml")
PLAIN = "text/plain"
PARTIAL = ("WARC-Truncated", "WARC-Segment-Number")  # fields of a record that has not all of its content


class Truncated(Exception):
    """A file ends within a record."""


class BoundedFile(io.RawIOBase):
    """A file, from where it is, as if it ended at `end`."""

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


def read_warc(source: WarcSource, pieces: Sequence[Piece], broken: Broken | None) -> Iterator[Raw]:
    """Documents are named by their record and address: "crawl.warc.gz#d4b8…-… https://example.com/"."""
    total = sum(piece.size for piece in pieces) or 1
    before = 0
    for piece in pieces:
        item, name = piece.file, ""
        with skipping(source, item, broken), item.open() as file:
            file.seek(piece.start)
            try:
                most, compressed = source.max_bytes(), item.name.endswith(".gz")
                part = file if piece.end is None else cast(IO[bytes], BoundedFile(file, piece.end))
                for name, size, record in _documents(part, compressed, most):
                    where = f"{item.place}, record {name}"
                    with skipping(source, item, broken):
                        text = _text(record, source.main_content, where)
                        refuse_large(size, most, where)
                        yield Raw(f"{item.name}#{name}", text, min(1.0, (before + file.tell() - piece.start) / total))
            except (Truncated, OSError, EOFError) as error:
                where = f"{item.place}, after record {name}" if name else item.place
                message = f"{where}: damaged or truncated ({error}); download it again, or set on_broken: skip"
                raise BrokenFile(message) from error
        before += piece.size


def _documents(file: IO[bytes], compressed: bool, most: int) -> Iterator[tuple[str, int, WarcRecord]]:
    """The documents: their WARC-Record-ID and address, the size of their record, and the record, which has no content
    if that is more than `most` bytes. Raises Truncated, OSError (not a WARC file, damaged), EOFError (a compressed file
    that is truncated)."""
    # decompressed here: FastWARC takes the end of a truncated member for the end of the file
    stream = gzip.GzipFile(fileobj=file) if compressed else file
    kinds = WarcRecordType.conversion | WarcRecordType.response
    for record in ArchiveIterator(stream, record_types=kinds, parse_http=False, fsspec_args=False):
        length = record.headers.get("Content-Length")
        size = record.content_length
        # quirks_mode: the lines of a head may end in a bare LF (RFC 9112)
        if size > most:
            record.parse_http(quirks_mode=True)  # reads only the head
            size = record.content_length
            held = record.consume()
        else:
            record.freeze()
            held = record.content_length
            record.parse_http(max_header_len=size, quirks_mode=True)
        if length is None or held < size:
            raise Truncated(f"record {record.record_id} has {held} of {size if length else 'unknown'} bytes")
        if _is_document(record):
            name = (record.record_id or "").strip("<>").removeprefix("urn:uuid:")
            yield f"{name} {record.headers.get('WARC-Target-URI', '')}".rstrip(), size, record


def _is_document(record: WarcRecord) -> bool:
    if record.record_type == WarcRecordType.conversion:
        return True
    head = record.http_headers
    return head is not None and head.status_code == 200 and _media_type(record) in (*HTML, PLAIN)


def _media_type(record: WarcRecord) -> str:
    """In lower case, since its case has no meaning (RFC 9110); as the crawler identified it if the page has none."""
    return str(record.http_content_type or record.headers.get("WARC-Identified-Payload-Type", "")).lower()


def _text(record: WarcRecord, main_content: bool, where: str) -> bytes:
    """In UTF-8, or as it is in a WET file. Raises BrokenRecord if the record says that it is truncated or a segment, or
    the page is not in the codings of its head."""
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
