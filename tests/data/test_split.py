"""Large compressed JSONL files and crawls are split into parts that are read in parallel."""

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest

from baton.tasks.core.job import Job
from baton.tasks.data.corpus import work
from baton.tasks.data.documents import read_documents
from baton.tasks.data.partitions import Partition, partitions
from baton.tasks.data.readers.raw import BrokenFile
from baton.tasks.data.source_spec import JsonlSource, WarcSource
from baton.tasks.data.sources import read_source
from baton.tasks.data.split import pieces_of, split, split_item
from tests.data.by_hand import digest, facts, new_job
from tests.data.test_warc import record, response

TARGET = 50_000


@pytest.fixture
def source(tmp_path: Path) -> JsonlSource:
    """One file with blank lines, and without a line end at its end."""
    folder = tmp_path / "source"
    folder.mkdir()
    draw = Random(0)
    lines = [json.dumps({"text": draw.randbytes(400).hex()}) if number % 7 else "" for number in range(1000)]
    (folder / "all.jsonl.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    return JsonlSource(path=str(folder))


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATON_HOME", str(tmp_path / "home"))


def job_of(folder: Path, source: JsonlSource, concurrency: int) -> Job:
    spec = {
        "source": source.model_dump(),
        "partitions": {"size_mb": TARGET / 1e6, "concurrency": concurrency},
        "held_out": 0.3,
    }
    return new_job(folder, "corpus", spec)


def cut(source: JsonlSource | WarcSource, target: int, folder: Path) -> Sequence[Partition]:
    """Return the partitions of a large file."""
    (part,) = partitions(None, source, target)
    item = split_item(source, part, target, folder, None)
    assert item
    split(item, lambda fraction, number: None)
    return pieces_of(item, part)


def test_the_pieces_have_the_documents_of_the_file(source: JsonlSource, tmp_path: Path) -> None:
    parts = cut(source, TARGET, tmp_path)
    assert len(parts) > 10
    documents = [raw[:2] for part in parts for raw in read_source(source, pieces=part.pieces)]
    assert documents == [raw[:2] for raw in read_source(source)]


def test_a_file_that_is_not_large_is_not_cut(source: JsonlSource, tmp_path: Path) -> None:
    size = source.files()[0].size
    (part,) = partitions(None, source, size // 2 + 1)
    assert split_item(source, part, size // 2 + 1, tmp_path, None) is None


def test_the_corpus_of_a_large_file_does_not_depend_on_the_number_of_workers(
    source: JsonlSource, tmp_path: Path
) -> None:
    one, three = (job_of(tmp_path / str(number), source, number) for number in (1, 3))
    work(one)
    (tmp_path / "home" / "partitions").rename(tmp_path / "kept")
    work(three)
    assert digest(one.output) == digest(three.output)
    found = {item.source: item.text for split in ("train", "held_out") for item in read_documents(one.output, split)}
    assert found == {raw.source: raw.text.decode() for raw in read_source(source)}


def test_a_truncated_large_file_is_named_or_skipped_from_there_on(source: JsonlSource, tmp_path: Path) -> None:
    path = Path(source.path) / "all.jsonl.gz"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(BrokenFile, match=r"all\.jsonl\.gz, after line \d+: damaged or truncated"):
        work(job_of(tmp_path / "stop", source, 2))
    job = job_of(tmp_path / "skip", source.model_copy(update={"on_broken": "skip"}), 2)
    work(job)
    assert facts(job.output)["broken"] == 1
    assert facts(job.output)["documents"] > 100


def crawl(path: Path) -> WarcSource:
    """A crawl of pages and texts, some of which contain complete records, compressed or not."""
    draw = Random(0)
    texts = [draw.randbytes(draw.randrange(300)).hex().encode() for _ in range(60)]
    within = [record("conversion", 1000 + number, text) for number, text in enumerate(texts[:20])]
    texts[10:30] = [
        gzip.compress(each, 0) if number % 2 else b"\r\n\r\n" + each + each for number, each in enumerate(within)
    ]
    records = [record("warcinfo", 0, b"software: x"), record("response", 1, response(b"short", "text/plain"))]
    records += [record("conversion", number, text) for number, text in enumerate(texts, 2)]
    level = 0  # stored blocks contain the bytes of a record unchanged
    path.write_bytes(b"".join(gzip.compress(each, level) if path.name.endswith(".gz") else each for each in records))
    return WarcSource(path=str(path))


@pytest.mark.parametrize("name", ["crawl.warc", "crawl.wet.gz"])
@pytest.mark.parametrize("target", [1, 50, 200, 1000, 5000])
def test_the_pieces_of_a_crawl_have_each_record_once(tmp_path: Path, name: str, target: int) -> None:
    source = crawl(tmp_path / name)
    parts = cut(source, target, tmp_path)
    assert sum(part.size for part in parts) == source.files()[0].size
    assert all(part.size < target + 2_500 for part in parts)  # maximum size of a record
    documents = [raw[:2] for part in parts for raw in read_source(source, pieces=part.pieces)]
    assert len(documents) == 61
    assert documents == [raw[:2] for raw in read_source(source)]


def test_a_crawl_in_one_gzip_member_is_not_cut(tmp_path: Path) -> None:
    source = crawl(tmp_path / "crawl.warc")
    whole = tmp_path / "whole.warc.gz"
    whole.write_bytes(gzip.compress((tmp_path / "crawl.warc").read_bytes()))
    (part,) = cut(WarcSource(path=str(whole)), 100, tmp_path)
    documents = [raw.text for raw in read_source(source)]
    assert [raw.text for raw in read_source(source, pieces=part.pieces)] == documents


@pytest.mark.parametrize("name", ["crawl.warc", "crawl.wet.gz"])
def test_a_truncated_crawl_is_left_to_its_reader(tmp_path: Path, name: str) -> None:
    source, path = crawl(tmp_path / name), tmp_path / name
    path.write_bytes(path.read_bytes()[:-20])
    (part,) = cut(source, 100, tmp_path)
    with pytest.raises(BrokenFile, match="damaged or truncated"):
        list(read_source(source, pieces=part.pieces))


def test_a_damaged_crawl_is_left_to_its_reader(tmp_path: Path) -> None:
    source, path = crawl(tmp_path / "crawl.wet.gz"), tmp_path / "crawl.wet.gz"
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2] + b"?" + content[len(content) // 2 + 1 :])
    (part,) = cut(source, 100, tmp_path)
    with pytest.raises(BrokenFile, match="damaged or truncated"):
        list(read_source(source, pieces=part.pieces))
