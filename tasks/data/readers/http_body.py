"""The body of an HTTP response without its codings (RFC 9110): `chunked`, `gzip`, `deflate`, `br` and `zstd`.

FastWARC decodes them too, but accepts a truncated body as complete, and ends its file at one that it cannot decode.
"""

import io
import re
from collections.abc import Iterator

import pyarrow as pa
from fastwarc.warc import HeaderMap

ARROW = {"gzip": "gzip", "x-gzip": "gzip", "deflate": "gzip", "br": "brotli", "zstd": "zstd"}  # its gzip detects zlib
CHUNK_SIZE = re.compile(rb"[0-9A-Fa-f]{1,15}[ \t]*[;\r]")


def decoded(body: bytes, head: HeaderMap) -> bytes:
    """Decode a body. Raises OSError or ValueError if the body is not in its codings, or truncated."""
    for coding in reversed([*_codings(head, "Content-Encoding"), *_codings(head, "Transfer-Encoding")]):
        if coding == "chunked":
            body = _without_chunks(body)
        elif codec := ARROW.get(coding):
            body = pa.CompressedInputStream(pa.BufferReader(body), codec).read() if body else body
        elif coding != "identity":
            raise ValueError(f"coding {coding!r} is none of chunked, identity, {', '.join(ARROW)}")
    return body


def _codings(head: HeaderMap, field: str) -> Iterator[str]:
    """The codings in the order in which they were applied."""
    for value in head.get_multiple(field):
        yield from filter(None, (coding.strip().lower() for coding in value.split(",")))


def _without_chunks(body: bytes) -> bytes:
    """Join a body's chunks. A body that does not begin with a chunk stays as it is: several crawlers store it so."""
    if not CHUNK_SIZE.match(body):
        return body
    stream, chunks = io.BytesIO(body), list[bytes]()
    while line := CHUNK_SIZE.match(stream.readline()):
        size = int(line[0][:-1], 16)
        if not size:
            return b"".join(chunks)
        chunks.append(stream.read(size))
        stream.readline()
    raise ValueError("its last chunk is truncated or missing")
