"""Large compressed JSONL is cut, so that its parts are read side by side."""

import gzip
import json
from pathlib import Path
from random import Random

import pytest

from tasks.data.corpus import work
from tasks.data.documents import read_documents
from tasks.data.partitions import partitions
from tasks.data.readers.raw import BrokenFile
from tasks.data.source_spec import JsonlSource
from tasks.data.sources import read_source
from tasks.data.split import pieces_of, split, split_item
from tasks.job import Job
from tests.data.by_hand import digest, facts, new_job

TARGET = 50_000


@pytest.fixture
def source(tmp_path: Path) -> JsonlSource:
    """One file, with blank lines and, at its end, none."""
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


def test_the_pieces_have_the_documents_of_the_file(source: JsonlSource, tmp_path: Path) -> None:
    (part,) = partitions(None, source, TARGET)
    item = split_item(source, part, TARGET, tmp_path, None)
    assert item
    split(item, lambda fraction, number: None)
    parts = pieces_of(item.folder, part)
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
