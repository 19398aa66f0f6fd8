"""Three days of two sources with curation: the documents, the partitions that are read and the counts of each
increment."""

import json
import random
import shutil
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from baton.tasks.core.job import Job, StageError
from baton.tasks.data import compact as compact_engine
from baton.tasks.data import gather as gather_engine
from baton.tasks.data import prefixes
from baton.tasks.data import shards as shards_engine
from baton.tasks.data import tokenizer as tokenizer_engine
from baton.tasks.data.corpus import SCANS
from baton.tasks.data.documents import SPLITS, read_documents
from baton.tasks.data.gone import gone_counts
from baton.tasks.data.increment import work
from baton.tasks.data.spec import CorpusSpec
from tests.data.by_hand import digest, facts, new_job, run, start

EXAM = "which river was it that the old man had crossed before he came to the town on the hill"


def words(seed: str, number: int = 60) -> str:
    draw = random.Random(seed)
    return " ".join(f"word{draw.randrange(5000)}" for _ in range(number))


@dataclass
class Days:
    """Two sources that change, and their increments."""

    root: Path
    made: list[Path] = field(default_factory=list)

    def write(self, file: str, *texts: str) -> None:
        """Write a `.jsonl` file with these texts."""
        path = self.root / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))

    def job(self, name: str) -> Job:
        spec: dict[str, Any] = {
            "sources": {name: {"kind": "jsonl", "path": f"{self.root}/{name}"} for name in ("books", "web")},
            "curate": [
                {"function": f"{self.root}/filters.py:keep"},
                {"near_duplicates": {}},
                {"decontaminate": {"against": [f"{self.root}/exam.txt"]}, "max_dropped": 0.3},
            ],
            "partitions": {"size_mb": 0.002, "concurrency": 2},
            "held_out": 0.3,
        }
        found = CorpusSpec.model_validate(spec).pinned().model_dump(mode="json")
        return new_job(self.root / name, "increment", found, known=self.made)

    def look(self) -> Path:
        job = self.job(f"day-{len(self.made)}")
        sys.modules.pop("filters", None)  # imported on the day before, by another process in practice
        work(job)
        self.made.append(job.output)
        return job.output


def texts(corpus: Path) -> set[str]:
    return {item.text for split in SPLITS for item in read_documents(corpus, split)}


@pytest.fixture
def days(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Days:
    """The state after the first day, with twelve files of four texts in each source."""
    monkeypatch.setenv("BATON_HOME", str(tmp_path / "home"))
    found = Days(tmp_path)
    (tmp_path / "filters.py").write_text("def keep(document):\n    return 'unwanted' not in document.text or 'no'\n")
    (tmp_path / "exam.txt").write_text(EXAM)
    for source in ("books", "web"):
        for number in range(12):
            found.write(f"{source}/{number:02}.jsonl", *(words(f"{source} {number} {row}") for row in range(4)))
    found.look()
    return found


def second_day(days: Days) -> None:
    """Add new documents to `web`, in a file that comes before all others."""
    similar = words("books 3 1").replace("word1", "other1", 2)
    days.write(
        "web/0.jsonl", words("new"), words("books 5 0"), similar, f"unwanted {words('x')}", f"{words('y')} {EXAM}"
    )


def test_a_day_has_what_no_day_before_had_and_counts_what_it_dropped(days: Days) -> None:
    assert facts(days.made[0])["documents"] + facts(days.made[0])["held_out_documents"] == 96
    second_day(days)
    corpus = days.look()
    assert texts(corpus) == {words("new")}
    dropped = {step: count["dropped"] for step, count in facts(corpus)["curation"].items()}
    assert dropped == {"function": 1, "near_duplicates": 1, "decontaminate": 1}
    assert facts(corpus)["sources"]["books"] == dict.fromkeys(facts(corpus)["sources"]["books"], 0)
    again = days.look()
    assert texts(again) == set()
    assert {step: count["dropped"] for step, count in facts(again)["curation"].items()} == {}


def test_a_day_reads_only_the_partitions_that_changed(days: Days) -> None:
    kept = set((days.root / "home/partitions").glob("*.scan"))
    days.write("books/04.jsonl", words("another"))
    corpus = days.look()
    assert texts(corpus) == {words("another")}
    assert len(set((days.root / "home/partitions").glob("*.scan")) - kept) == 1
    assert sum(gone_counts(corpus)[digest(days.made[0])].values()) == facts(corpus)["gone"] == 4


def test_a_day_counts_what_each_earlier_corpus_has_lost(days: Days) -> None:
    first = days.made[0]
    unchanged = days.look()
    assert facts(unchanged)["gone"] == 0
    gone = {json.loads(line)["text"] for line in (days.root / "web/03.jsonl").read_text().splitlines()}
    (days.root / "web/03.jsonl").unlink()
    trained, held_out = (sum(item.text in gone for item in read_documents(first, split)) for split in SPLITS)
    assert trained and held_out and trained + held_out == 4
    lost = {"train-web": trained, "held_out": held_out}
    assert gone_counts(days.look()) == {digest(first): lost, digest(unchanged): {}}


def test_a_killed_day_is_the_same(days: Days) -> None:
    second_day(days)
    expected = digest(days.look())
    days.made.pop()
    shutil.rmtree(days.root / "home/partitions")
    job = days.job("killed")
    process = start(job)
    while not list((job.directory / SCANS).glob("*.scan")) and process.poll() is None:
        time.sleep(0.01)
    process.kill()
    process.communicate()
    assert digest(run(job)) == expected


def test_a_source_whose_documents_are_gone_is_named(days: Days) -> None:
    for path in (days.root / "books").iterdir():
        path.write_text("")
    with pytest.raises(StageError, match=r"sources\.books has no documents now, and 48 of .* remove it from sources"):
        days.look()


def tokenized(days: Days, name: str, corpus: Path) -> Path:
    """Tokenize a corpus with the tokenizer of the first day."""
    tokenizer = days.root / "tokenizer"
    if not tokenizer.exists():
        tokenizer_engine.work(new_job(tokenizer, "tokenizer", {"vocab_size": 300}, corpus=days.made[0]))
    job = new_job(days.root / name, "shards", {}, corpus=corpus, tokenizer=tokenizer / "output")
    shards_engine.work(job)
    return job.output


def pruned(days: Days, data: Path, newest: Path) -> Path:
    job = new_job(days.root / "compact", "compact", {}, data=[data], corpora=days.made[:1], newest=[newest])
    compact_engine.work(job)
    return job.output


def test_the_shards_of_what_is_left_keep_their_sources(days: Days) -> None:
    data = tokenized(days, "data", days.made[0])
    (days.root / "web/03.jsonl").unlink()
    newest = days.look()
    before, after = facts(data)["sources"], facts(pruned(days, data, newest))["sources"]
    assert after["books"] == before["books"]
    assert 0 < after["web"] < before["web"]
    job = new_job(days.root / "gather", "gather", {}, corpora=days.made, newest=newest)
    gather_engine.work(job)
    assert len(texts(job.output)) == 92


def test_a_corpus_that_has_lost_nothing_need_not_be_given(days: Days) -> None:
    days.write("web/new.jsonl", words("a"), words("b"), words("c"), words("d"))
    second = days.look()
    data = [tokenized(days, name, corpus) for name, corpus in (("first", days.made[0]), ("second", second))]
    (days.root / "web/03.jsonl").unlink()
    newest = days.look()
    assert gone_counts(newest)[digest(second)] == {}
    job = new_job(days.root / "compact", "compact", {}, data=data, corpora=days.made[:1], newest=[newest])
    compact_engine.work(job)
    assert facts(job.output)["tokens"] < sum(facts(each)["tokens"] for each in data)


def test_each_prefix_of_large_shards_loses_what_is_gone(days: Days, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefixes, "SMALLEST", 1)
    monkeypatch.setattr(compact_engine, "SMALLEST", 1)
    data = tokenized(days, "data", days.made[0])
    (days.root / "web/03.jsonl").unlink()
    newest = days.look()
    left = pruned(days, data, newest)
    of = facts(left)["prefixes"]
    assert len(of) == len(facts(data)["prefixes"]) - 1 > 3  # one shard had only the documents of 03.jsonl
    assert of == {name: (left / f"{name}.bin").stat().st_size // 2 for name in of}
    job = new_job(days.root / "gather", "gather", {}, corpora=days.made[:1], newest=newest)
    gather_engine.work(job)
    again = tokenized(days, "again", job.output)
    assert all_ids(left) == all_ids(again)
    assert facts(left)["tokens"] == facts(again)["tokens"] == sum(of.values())


def all_ids(shards: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(shards.glob("train*.bin")))
