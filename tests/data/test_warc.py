"""Documents from WARC, WET and Arrow files, and the handling of damaged ones."""

import gzip
import zlib
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from baton.tasks.core.job import StageError
from baton.tasks.data.first_record import missing
from baton.tasks.data.readers.raw import Broken, BrokenFile, BrokenRecord
from baton.tasks.data.source_spec import ArrowSource, WarcSource
from baton.tasks.data.sources import read_source

PAGE = """<html><head><title>Cities</title></head><body><nav>Home About</nav><article><h1>Köln</h1>
<p>Köln liegt am Rhein und ist sehr alt.</p></article><footer>Imprint</footer></body></html>"""


def record(kind: str, number: int, body: bytes, address: str = "https://example.com/") -> bytes:
    head = (
        f"WARC/1.0\r\nWARC-Type: {kind}\r\nWARC-Record-ID: <urn:uuid:{number:04}>\r\nWARC-Target-URI: {address}\r\n"
        f"WARC-Date: 2026-01-01T00:00:00Z\r\nContent-Length: {len(body)}\r\n"
    )
    more = "Content-Type: application/http; msgtype=response\r\n" if kind == "response" else ""
    return f"{head}{more}\r\n".encode() + body + b"\r\n\r\n"


def response(body: bytes, content_type: str, status: str = "200 OK", more: str = "") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\n{more}\r\n".encode() + body


def write(path: Path, *records: bytes) -> Path:
    path.write_bytes(b"".join(map(gzip.compress, records)) if path.name.endswith(".gz") else b"".join(records))
    return path


def found(path: Path, broken: Broken | None = None, **more: object) -> dict[str, str]:
    source = WarcSource.model_validate({"path": str(path), **more})
    return {raw.source: raw.text.decode() for raw in read_source(source, broken)}


@pytest.mark.parametrize("name", ["crawl.wet", "crawl.warc.wet.gz"])
def test_each_conversion_record_of_a_wet_file_is_a_document(tmp_path: Path, name: str) -> None:
    records = [record("warcinfo", 0, b"software: x"), record("conversion", 1, "Grüße\nan alle".encode())]
    assert found(write(tmp_path / name, *records)) == {f"{name}#0001 https://example.com/": "Grüße\nan alle"}


@pytest.mark.parametrize("name", ["crawl.warc", "crawl.warc.gz"])
def test_pages_become_text(tmp_path: Path, name: str) -> None:
    path = write(
        tmp_path / name,
        record("request", 0, b"GET / HTTP/1.1\r\n\r\n"),
        record("response", 1, response(PAGE.encode("latin-1"), "text/html; charset=iso-8859-1")),
        record("response", 2, response(gzip.compress(PAGE.encode()), "text/html", more="Content-Encoding: gzip\r\n")),
        record("response", 3, response(b"schlicht", "text/plain"), "https://example.com/robots.txt"),
        record("response", 4, response(PAGE.encode(), "text/html", "404 Not Found")),
        record("response", 5, response(b"\x89PNG", "image/png")),
    )
    page = "Köln\n\nKöln liegt am Rhein und ist sehr alt."
    assert found(path) == {
        f"{name}#0001 https://example.com/": page,
        f"{name}#0002 https://example.com/": page,
        f"{name}#0003 https://example.com/robots.txt": "schlicht",
    }


def test_all_of_a_page_by_choice(tmp_path: Path) -> None:
    path = write(tmp_path / "crawl.warc", record("response", 1, response(PAGE.encode(), "text/html")))
    (text,) = found(path, main_content=False).values()
    assert "Home About" in text
    assert "Imprint" in text


@pytest.mark.parametrize("name", ["crawl.wet", "crawl.wet.gz"])
@pytest.mark.parametrize("missing", [5, 50, 200])
def test_a_truncated_file_is_broken(tmp_path: Path, name: str, missing: int) -> None:
    noise = ["".join(chr(97 + (number * at) % 23) for at in range(1_000)).encode() for number in range(1, 400)]
    path = write(tmp_path / name, *(record("conversion", number, text) for number, text in enumerate(noise)))
    path.write_bytes(path.read_bytes()[:-missing])
    with pytest.raises(BrokenFile, match="damaged or truncated"):
        found(path)
    broken = Broken()
    assert len(found(path, broken, on_broken="skip")) > 100
    assert str(path) in broken[name].rest


def three(length: int = 0) -> list[bytes]:
    """Return three records, of which the second declares `length` bytes more than it has."""
    bodies = [f"text {number} has some words\nand lines".encode() for number in range(3)]
    records = [record("conversion", number, body) for number, body in enumerate(bodies)]
    before, after = (f"Content-Length: {len(bodies[1]) + more}\r\n".encode() for more in (0, length))
    return [records[0], records[1].replace(before, after), records[2]]


def numbers(documents: dict[str, str]) -> list[str]:
    return [name.partition("#")[2][:4] for name in documents]


@pytest.mark.parametrize("length", [-20, -1, 1, 3, 4, 5, 30, 300, 10**12])
@pytest.mark.parametrize("kind", ["conversion", "request"])
def test_a_wrong_length_in_a_gzip_member_of_its_own_is_one_broken_record(
    tmp_path: Path, kind: str, length: int
) -> None:
    first, wrong, last = three(length)
    path = write(tmp_path / "crawl.wet.gz", first, wrong.replace(b"conversion", kind.encode()), last)
    broken = Broken()
    assert numbers(found(path, broken, on_broken="skip")) == ["0000", "0002"]
    if kind == "conversion" or not 0 < length < 5:  # small surpluses are harmless in a record that nobody reads
        assert (broken[path.name].records, broken[path.name].rest) == (1, "")
        with pytest.raises(BrokenRecord, match=r"record .*0001.*Content-Length|after record 0000.* of \d+ bytes"):
            found(path)


@pytest.mark.parametrize(("length", "after"), [(1, ["0002"]), (4, ["0002"]), (-1, []), (-20, []), (30, []), (3000, [])])
def test_a_wrong_length_in_an_uncompressed_file_is_never_read_as_text(
    tmp_path: Path, length: int, after: list[str]
) -> None:
    path = write(tmp_path / "crawl.wet", *three(length))
    broken = Broken()
    assert numbers(found(path, broken, on_broken="skip")) == ["0000", *after]
    assert bool(broken[path.name].records) == bool(after) and bool(broken[path.name].rest) != bool(after)
    with pytest.raises(BrokenFile, match=r"Content-Length| of "):
        found(path)


@pytest.mark.parametrize("place", [slice(0, 4), slice(20, 40), slice(40, 60), slice(-8, -4)])
def test_after_a_damaged_gzip_member_reading_goes_on_at_the_next(tmp_path: Path, place: slice) -> None:
    path = tmp_path / "crawl.wet.gz"
    before, damaged, after = (bytearray(gzip.compress(each)) for each in three())
    damaged[place] = b"\1" * len(damaged[place])
    path.write_bytes(before + damaged + after)
    broken = Broken()
    assert numbers(found(path, broken, on_broken="skip")) == ["0000", "0002"]
    assert broken[path.name].records == 1
    with pytest.raises(BrokenRecord, match=r"after record 0000.*damaged"):
        found(path)


@pytest.mark.parametrize("size", [7, 100, 333, 10**6])
def test_gzip_members_may_begin_anywhere(tmp_path: Path, size: int) -> None:
    inner = b"".join(three())
    content = b"".join([*three(), record("conversion", 3, inner), record("conversion", 4, b"")])
    path = tmp_path / "crawl.wet.gz"
    path.write_bytes(
        b"".join(gzip.compress(content[at : at + size]) for at in range(0, len(content), size)) + bytes(99)
    )
    documents = found(path)
    assert numbers(documents) == ["0000", "0001", "0002", "0003", "0004"]
    assert [*documents.values()][3].encode() == inner


def test_a_page_that_ends_in_its_head_is_broken(tmp_path: Path) -> None:
    path = write(tmp_path / "crawl.warc", record("response", 1, response(PAGE.encode(), "text/html")))
    path.write_bytes(path.read_bytes().partition(b"Content-Type: text/html")[0])
    with pytest.raises(BrokenFile, match="0001"):
        found(path)


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "zstd", "unknown"])
def test_a_page_in_another_coding_than_its_head_says_is_one_broken_record(tmp_path: Path, coding: str) -> None:
    pages = [PAGE.encode() if number == 2 else b"schlicht" for number in range(1, 5)]
    heads = [f"Content-Encoding: {coding}\r\n" if number == 2 else "" for number in range(1, 5)]
    bodies = [response(page, "text/plain", more=head) for page, head in zip(pages, heads, strict=True)]
    path = write(tmp_path / "crawl.warc.gz", *(record("response", number, body) for number, body in enumerate(bodies)))
    with pytest.raises(BrokenRecord, match=r"record 0001 https://example\.com/: not encoded as its head says"):
        found(path)
    broken = Broken()
    assert list(found(path, broken, on_broken="skip").values()) == ["schlicht"] * 3
    assert (broken[path.name].records, broken[path.name].rest) == (1, "")


@pytest.mark.parametrize("size", [b"%x\r\n" % len(PAGE.encode()), b"%x ;name=value\r\n" % len(PAGE.encode()), b""])
def test_a_chunked_page_that_is_stored_with_and_without_its_chunks(tmp_path: Path, size: bytes) -> None:
    body = size + PAGE.encode() + (b"\r\n0\r\n\r\n" if size else b"")
    page = response(body, "text/html", more="Transfer-Encoding: chunked\r\n")
    path = write(tmp_path / "crawl.warc", record("response", 1, page))
    assert list(found(path).values()) == ["Köln\n\nKöln liegt am Rhein und ist sehr alt."]


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
def test_a_page_whose_compressed_body_is_truncated_is_a_broken_record(tmp_path: Path, coding: str) -> None:
    body = gzip.compress(PAGE.encode()) if coding == "gzip" else zlib.compress(PAGE.encode())
    page = response(body[: len(body) // 2], "text/html", more=f"Content-Encoding: {coding}\r\n")
    with pytest.raises(BrokenRecord, match=r"record 0001 .* or truncated"):
        found(write(tmp_path / "crawl.warc", record("response", 1, page)))


@pytest.mark.parametrize("field", ["WARC-Truncated: length", "WARC-Segment-Number: 1"])
@pytest.mark.parametrize("kind", ["response", "conversion"])
def test_a_record_that_the_crawler_truncated_or_split_is_broken(tmp_path: Path, kind: str, field: str) -> None:
    part, whole = (record(kind, number, response(PAGE.encode(), "text/html")) for number in (1, 2))
    film = record("response", 3, response(b"film", "video/mp4"))
    mark = b"WARC-Record-ID", f"{field}\r\nWARC-Record-ID".encode()
    path = write(tmp_path / "crawl.warc", part.replace(*mark), whole, film.replace(*mark))
    with pytest.raises(BrokenRecord, match=rf"record 0001 .*not a whole document \({field}\)"):
        found(path)
    broken = Broken()
    assert [name.partition("#")[2][:4] for name in found(path, broken, on_broken="skip")] == ["0002"]
    assert (broken[path.name].records, broken[path.name].rest) == (1, "")


@pytest.mark.parametrize(
    "page",
    [
        response(PAGE.encode("latin-1"), "TEXT/HTML; Charset=ISO-8859-1"),
        b"HTTP/1.1 200 OK\nContent-Type: text/html\n\n" + PAGE.encode(),
        response(PAGE.encode(), "text/html", more=f"X-Long: {'x' * 100_000}\r\n"),
    ],
    ids=["media type in upper case", "head with bare line feeds", "long head"],
)
def test_unusual_heads(tmp_path: Path, page: bytes) -> None:
    path = write(tmp_path / "crawl.warc", record("response", 1, page))
    assert list(found(path).values()) == ["Köln\n\nKöln liegt am Rhein und ist sehr alt."]


def test_a_page_without_a_media_type_has_the_one_that_the_crawler_identified(tmp_path: Path) -> None:
    page = record("response", 1, b"HTTP/1.1 200 OK\r\n\r\n" + PAGE.encode())
    identified = page.replace(b"WARC-Record-ID", b"WARC-Identified-Payload-Type: text/html\r\nWARC-Record-ID")
    path = write(tmp_path / "crawl.warc", identified, page)
    assert list(found(path).values()) == ["Köln\n\nKöln liegt am Rhein und ist sehr alt."]


def test_a_large_page_is_refused_and_a_large_film_passed_over(tmp_path: Path) -> None:
    film = record("response", 1, response(bytes(9_000), "video/mp4"))
    page = record("response", 2, response(PAGE.encode() * 40, "text/html"))
    assert found(write(tmp_path / "film.warc", film), max_document_mb=0.005) == {}
    with pytest.raises(StageError, match=r"record 0002 .*larger than max_document_mb = 0.005"):
        found(write(tmp_path / "page.warc.gz", film, page), max_document_mb=0.005)


@pytest.mark.parametrize("options", [pa.ipc.new_file, pa.ipc.new_stream])
def test_arrow_files_and_streams(tmp_path: Path, options: Callable[..., pa.RecordBatchStreamWriter]) -> None:
    table = pa.table({"body": ["one", None, "drei"], "n": [1, 2, 3]})
    with options(str(tmp_path / "x.arrow"), table.schema) as writer:
        writer.write_table(table, max_chunksize=2)
    source = ArrowSource(path=str(tmp_path), text_field="body")
    assert missing(source) == []
    assert {raw.source: raw.text for raw in read_source(source)} == {
        "x.arrow#0": b"one",
        "x.arrow#1": b"",
        "x.arrow#2": b"drei",
    }
    (problem,) = missing(ArrowSource(path=str(tmp_path)))
    assert problem.path == "text_field"
    (tmp_path / "x.arrow").write_bytes((tmp_path / "x.arrow").read_bytes()[:-200])
    with pytest.raises(BrokenFile, match=r"x\.arrow: not readable as Arrow"):
        list(read_source(source))


def test_another_format_is_broken(tmp_path: Path) -> None:
    (tmp_path / "x.warc.gz").write_bytes(b"{}")
    with pytest.raises(BrokenFile, match=r"x\.warc\.gz"):
        found(tmp_path)
