"""Read the documents of WARC and WET files (ISO 28500), as crawls are kept.

Of a WET file, each `conversion` record is a document. Of a WARC file, each `response` with status 200 is one: plain
text as it is, and the text of HTML by Resiliparse, which DataComp-LM chose (Li et al., 2024); its result depends on
nothing but the page. Other records and types of content are passed over.
"""

import gzip
from collections.abc import Iterator
from typing import IO

from fastwarc.warc import ArchiveIterator, WarcRecord, WarcRecordType
from resiliparse.extract.html2text import extract_plain_text
from resiliparse.parse.encoding import bytes_to_str, detect_encoding
from resiliparse.parse.html import HTMLTree

HTML = ("text/html", "application/xhtml+xml")


class Truncated(Exception):
    """A file ends within a record."""


def read_warc(file: IO[bytes], compressed: bool, main_content: bool) -> Iterator[tuple[str, bytes]]:
    """The documents, each with its WARC-Record-ID and address. Raises Truncated, OSError (not a WARC file, damaged),
    EOFError (a compressed file that is truncated)."""
    # decompressed here: FastWARC takes the end of a truncated member for the end of the file
    stream = gzip.GzipFile(fileobj=file) if compressed else file
    kinds = WarcRecordType.conversion | WarcRecordType.response
    for record in ArchiveIterator(stream, record_types=kinds, parse_http=False, fsspec_args=False):
        size = record.headers.get("Content-Length")
        record.freeze()
        if size is None or record.content_length < int(size):
            raise Truncated(f"record {record.record_id} has {record.content_length} of {size} bytes")
        text = _text(record, main_content)
        if text is not None:
            name = (record.record_id or "").strip("<>").removeprefix("urn:uuid:")
            yield f"{name} {record.headers.get('WARC-Target-URI', '')}".rstrip(), text


def _text(record: WarcRecord, main_content: bool) -> bytes | None:
    if record.record_type == WarcRecordType.conversion:
        return bytes(record.reader.read())
    record.parse_http(auto_decode="all")
    if not record.http_headers or record.http_headers.status_code != 200:
        return None
    kind = record.http_content_type
    if kind not in HTML and kind != "text/plain":
        return None
    content = record.reader.read()
    encoding = record.http_charset or detect_encoding(content, from_html_meta=kind in HTML)
    if kind == "text/plain":
        text = bytes_to_str(content, encoding)
    else:
        text = extract_plain_text(HTMLTree.parse_from_bytes(content, encoding), main_content=main_content)
    return text.encode("utf-8", "surrogatepass")
