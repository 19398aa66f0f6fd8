"""Increments: the new documents of a source on each day, and the remaining earlier documents."""

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from baton.tasks.core.job import Job, StageError
from baton.tasks.core.manifest import json_key, read_manifest, text_digest, write_manifest
from baton.tasks.data import compact as compact_engine
from baton.tasks.data import corpus as corpus_engine
from baton.tasks.data import gather as gather_engine
from baton.tasks.data import increment as increment_engine
from baton.tasks.data import tokenizer as tokenizer_engine
from baton.tasks.data.artifact import Corpus
from baton.tasks.data.documents import SPLITS, Split, read_documents, split_of
from baton.tasks.data.gone import GoneDocuments
from baton.tasks.data.source_changes import Changes
from baton.tasks.data.task import ancestors_of_last
from baton.tasks.pretrain import megatron  # noqa: F401 - makes megatron.core fit this machine, so it comes first
from tests.data.by_hand import digest, facts, new_job, run

# isort: split
from megatron.core.datasets.indexed_dataset import IndexedDataset

HELD_OUT = 0.3


@dataclass
class Chain:
    """A source that changes, and its daily corpora."""

    root: Path
    kind: str = "files"
    corpora: list[Path] = field(default_factory=list)
    _jobs: int = 0

    @property
    def source(self) -> Path:
        (self.root / "source").mkdir(exist_ok=True)
        return self.root / "source"

    @property
    def spec(self) -> dict[str, Any]:
        return {"source": {"kind": self.kind, "path": str(self.source)}, "held_out": HELD_OUT}

    def look(self) -> Path:
        """Create the increment of the next day."""
        self.corpora.append(self.make(increment_engine.work, "increment", self.spec, known=self.corpora))
        return self.corpora[-1]

    def make(self, work: Callable[[Job], None], stage: str, spec: dict[str, Any], **inputs: Path | list[Path]) -> Path:
        self._jobs += 1
        job = new_job(self.root / f"{self._jobs}-{stage}", stage, spec, **inputs)
        work(job)
        return job.output


@pytest.fixture
def chain(tmp_path: Path) -> Chain:
    """A source of forty documents, and their corpus from a first run."""
    chain = Chain(tmp_path)
    for number in range(40):
        (chain.source / f"{number:02}.txt").write_text(f"document {number}\n")
    chain.corpora.append(chain.make(corpus_engine.work, "corpus", chain.spec))
    return chain


@pytest.fixture
def small_tokenizer(chain: Chain) -> Path:
    return chain.make(tokenizer_engine.work, "tokenizer", {"vocab_size": 262}, corpus=chain.corpora[0])


def ids(corpus: Path, split: Split) -> list[str]:
    return [item.id for item in read_documents(corpus, split)]


def all_ids(corpus: Path) -> list[str]:
    return [each for split in SPLITS for each in ids(corpus, split)]


def gone_ids(chain: Chain) -> list[str]:
    """Return the documents that the newest increment lists as gone, in the order of the corpora."""
    corpora = {digest(corpus): corpus for corpus in chain.corpora}
    parts = GoneDocuments.read(chain.corpora[-1]).rows.items()
    splits: dict[str, Split] = {"train": "train", "held_out": "held_out"}
    return [ids(corpora[of], splits[part])[row] for (of, part), rows in parts for row in rows]


def test_nothing_new_is_a_corpus_without_documents(chain: Chain) -> None:
    corpus = chain.look()
    counts = facts(chain.corpora[0]) | dict.fromkeys(("edited", "renamed", "deleted"))
    known = json_key([digest(chain.corpora[0])])
    assert facts(corpus) == dict.fromkeys(counts, 0) | {"gone": 0, "known_digest": known}
    assert Changes.read(corpus) == Changes()


def test_of_the_known_corpora_the_last_one_stands_for_those_that_it_was_compared_with(chain: Chain) -> None:
    chain.corpora = []
    for _ in range(3):
        (chain.source / f"more-{len(chain.corpora)}.txt").write_text(f"more on day {len(chain.corpora)}\n")
        chain.look()
    known = [Corpus.from_place(str(corpus)) for corpus in chain.corpora]
    assert ancestors_of_last([]) == ancestors_of_last(known[:1]) == []
    assert ancestors_of_last(known) == ["known.0", "known.1"]
    assert ancestors_of_last([known[0], known[2]]) == ancestors_of_last([known[1], known[0], known[2]]) == []


def test_only_what_is_new_is_in_it_and_what_happened_is_counted(chain: Chain) -> None:
    (chain.source / "05.txt").write_text("another text\n")
    (chain.source / "06.txt").unlink()
    (chain.source / "07.txt").rename(chain.source / "moved.txt")
    (chain.source / "new.txt").write_text("a new document\n")
    (chain.source / "new-2.txt").write_text("a new document\n")
    (chain.source / "nothing.txt").write_text(" \n")
    (chain.source / "broken.txt").write_bytes(b"caf\xe9")
    corpus = chain.look()
    found = facts(corpus)
    assert sorted(item.text for split in SPLITS for item in read_documents(corpus, split)) == [
        "a new document\n",
        "another text\n",
    ]
    assert found["documents"] + found["held_out_documents"] == 2
    assert found["bytes"] + found["held_out_bytes"] == len("a new document\nanother text\n")
    assert [found[name] for name in ("edited", "renamed", "deleted")] == [1, 1, 1]
    assert [found[name] for name in ("duplicates", "empty", "invalid_utf8")] == [1, 1, 1]


def test_an_edited_document_stays_in_its_split_for_ever(chain: Chain) -> None:
    splits = {item.source: split for split in SPLITS for item in read_documents(chain.corpora[0], split)}
    moved = 0
    for day in range(3):
        for name in splits:
            (chain.source / name).write_text(f"{name} on day {day}\n")
        corpus = chain.look()
        assert {item.source: split for split in SPLITS for item in read_documents(corpus, split)} == splits
        moved += sum(split_of(each, HELD_OUT) != "held_out" for each in ids(corpus, "held_out"))
    assert moved  # by content alone, some would have moved to the other split


def test_a_copy_of_an_edit_under_a_new_name_does_not_change_its_split(chain: Chain) -> None:
    held_out = next(read_documents(chain.corpora[0], "held_out"))
    for number in range(50):
        text = f"edited {number}\n"
        if split_of(text_digest(text), HELD_OUT) == "train":
            break
    (chain.source / held_out.source).write_text(text)
    (chain.source / "00-copy.txt").write_text(text)  # the first name
    assert ids(chain.look(), "held_out") == [text_digest(text)]


def test_a_source_that_lost_everything_is_an_error_that_says_what_is_at_stake(chain: Chain) -> None:
    for path in chain.source.iterdir():
        path.unlink()
    with pytest.raises(StageError, match=r"has no documents .* 40 of its documents are known: is its folder mounted\?"):
        chain.look()


def test_a_document_that_comes_back_is_not_new(chain: Chain) -> None:
    text = (chain.source / "05.txt").read_text()
    (chain.source / "05.txt").unlink()
    chain.look()
    assert gone_ids(chain) == [text_digest(text)]
    (chain.source / "05.txt").write_text(text)
    corpus = chain.look()
    assert all_ids(corpus) == []
    assert gone_ids(chain) == []


def test_lines_that_moved_are_not_new(tmp_path: Path) -> None:
    chain = Chain(tmp_path, "jsonl")
    path = chain.source / "a.jsonl"
    lines = [json.dumps({"text": f"line {number}"}) + "\n" for number in range(30)]
    path.write_text("".join(lines))
    chain.look()
    path.write_text("".join([*lines[:3], json.dumps({"text": "put between"}) + "\n", *lines[3:]]))
    corpus = chain.look()
    assert all_ids(corpus) == [text_digest("put between")]
    assert facts(corpus)["renamed"] == 27
    path.rename(chain.source / "b.jsonl")
    assert (all_ids(chain.look()), facts(chain.corpora[-1])["renamed"]) == ([], 31)


@contextmanager
def new_chain(kind: str) -> Iterator[Chain]:
    with TemporaryDirectory() as folder:
        yield Chain(Path(folder), kind)


def check(chain: Chain, texts: list[str]) -> None:
    """Create one more day with these documents in the source, and compare it with a full pass."""
    everything = {text_digest(text) for text in texts if text.strip()}
    before = {each: split for corpus in chain.corpora for split in SPLITS for each in ids(corpus, split)}
    corpus = chain.look()
    found = all_ids(corpus)
    assert len(found) == len(set(found))
    assert set(found) == everything - before.keys()
    changes = Changes.read(corpus)
    assert set(gone_ids(chain)) == before.keys() - everything
    counted = facts(corpus)
    assert counted["documents"] + counted["held_out_documents"] == len(found)
    assert (counted["renamed"], counted["deleted"]) == (len(changes.renamed), len(changes.deleted))
    predecessor = {each.after: each.before for each in reversed(changes.edited)}
    for split in SPLITS:
        for each in ids(corpus, split):
            assert split == (before[predecessor[each]] if each in predecessor else split_of(each, HELD_OUT))
    left = chain.make(gather_engine.work, "gather", {}, corpora=chain.corpora, newest=corpus)
    assert sorted(all_ids(left)) == sorted(everything)
    whole = before | {each: split for split in SPLITS for each in ids(corpus, split)}
    assert all(whole[each] == split for split in SPLITS for each in ids(left, split))


texts = st.sampled_from([f"text {number}" for number in range(8)] + ["", " \n"])


@pytest.mark.long
@given(st.lists(st.dictionaries(st.sampled_from(["a", "b", "c", "d/e", "d/f"]), texts), min_size=2, max_size=5))
@settings(max_examples=25, deadline=None)
def test_the_increments_of_files_are_what_a_full_pass_finds(history: list[dict[str, str]]) -> None:
    with new_chain("files") as chain:
        (chain.source / "d").mkdir()
        for day in history:
            expected = {f"{name}.txt": text for name, text in day.items()} | {"always.txt": "always there"}
            for path in chain.source.rglob("*.txt"):
                path.unlink()
            for name, text in expected.items():
                (chain.source / name).write_text(text)
            check(chain, list(expected.values()))


@pytest.mark.long
@given(st.lists(st.lists(texts, max_size=6), min_size=2, max_size=5))
@settings(max_examples=25, deadline=None)
def test_the_increments_of_lines_are_what_a_full_pass_finds(history: list[list[str]]) -> None:
    with new_chain("jsonl") as chain:
        for day in history:
            expected = [*day, "always there"]
            (chain.source / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in expected))
            check(chain, expected)


def test_the_increment_is_the_same_wherever_the_source_is(chain: Chain, tmp_path: Path) -> None:
    (chain.source / "new.txt").write_text("a new document\n")
    one = chain.look()
    moved = chain.source.rename(tmp_path / "elsewhere")
    spec = {"source": {"kind": "files", "path": str(moved)}, "held_out": HELD_OUT}
    assert digest(run(new_job(tmp_path / "two", "increment", spec, known=chain.corpora[:1]))) == digest(one)


def test_an_interrupted_attempt_leaves_no_trace(chain: Chain, tmp_path: Path) -> None:
    (chain.source / "new.txt").write_text("a new document\n")
    whole = chain.look()
    job = new_job(tmp_path / "again", "increment", chain.spec, known=chain.corpora[:1])
    job.output.mkdir()
    for folder, name in ((job.output, "train-00007.parquet"), (job.work, "train-00000.parquet")):
        shutil.copy(chain.corpora[0] / "train-00000.parquet", folder / name)
    increment_engine.work(job)
    assert digest(job.output) == digest(whole)
    assert not (job.directory / "work").exists()


def test_the_held_out_documents_that_are_left_in_their_order(chain: Chain) -> None:
    first = ids(chain.corpora[0], "held_out")
    gone = next(read_documents(chain.corpora[0], "held_out"))
    (chain.source / gone.source).unlink()
    for number in range(10):
        (chain.source / f"new-{number}.txt").write_text(f"new document {number}\n")
    second = ids(chain.look(), "held_out")
    (chain.source / "last.txt").write_text("the newest\n")
    newest = chain.look()
    corpus = chain.make(gather_engine.work, "gather", {"train": False}, corpora=chain.corpora[:2], newest=newest)
    assert second
    assert all_ids(corpus) == [*first[1:], *second]
    assert (facts(corpus)["documents"], facts(corpus)["deleted"]) == (0, 1)


def shards(chain: Chain, corpus: Path, tokenizer: Path) -> Path:
    return run(new_job(chain.root / f"shards-{digest(corpus)}", "shards", {}, corpus=corpus, tokenizer=tokenizer))


def without_gone(chain: Chain, data: Path, corpus: Path, newest: Path) -> Path:
    return chain.make(compact_engine.work, "compact", {}, data=[data], corpora=[corpus], newest=[newest])


def test_pruned_shards_are_those_of_what_is_left(chain: Chain, small_tokenizer: Path) -> None:
    data = shards(chain, chain.corpora[0], small_tokenizer)
    for number in (0, 1, 2, 20, 39):
        (chain.source / f"{number:02}.txt").unlink()
    newest = chain.look()
    left = chain.make(gather_engine.work, "gather", {}, corpora=chain.corpora[:1], newest=newest)
    pruned = without_gone(chain, data, chain.corpora[0], newest)
    again = shards(chain, left, small_tokenizer)
    assert (digest(pruned), facts(pruned)) == (digest(again), facts(again))
    assert len(IndexedDataset(str(pruned / "train"))) == facts(left)["documents"]


def test_a_corpus_of_which_nothing_is_left_has_shards_without_tokens(chain: Chain, small_tokenizer: Path) -> None:
    data = shards(chain, chain.corpora[0], small_tokenizer)
    for path in chain.source.iterdir():
        path.write_text(f"{path.name} was rewritten\n")
    newest = chain.look()
    pruned = without_gone(chain, data, chain.corpora[0], newest)
    nothing = chain.make(gather_engine.work, "gather", {}, corpora=chain.corpora[:1], newest=newest)
    empty = shards(chain, nothing, small_tokenizer)
    assert digest(pruned) == digest(empty)
    assert [facts(pruned)[name] for name in ("tokens", "held_out_tokens", "held_out_bytes")] == [0, 0, 0]
    assert np.fromfile(pruned / "train.idx", np.uint8).size == 34 + 8


def test_compacted_shards_are_of_no_one_corpus_so_nothing_can_be_dropped_from_them(
    chain: Chain, small_tokenizer: Path
) -> None:
    data = shards(chain, chain.corpora[0], small_tokenizer)
    again = chain.make(compact_engine.work, "compact", {}, data=[data])
    newest = chain.look()
    with pytest.raises(StageError, match="the increment does not list its documents that are gone"):
        chain.make(compact_engine.work, "compact", {}, data=[again], newest=[newest])


def test_a_corpus_of_which_something_is_gone_must_be_given(chain: Chain, small_tokenizer: Path) -> None:
    data = shards(chain, chain.corpora[0], small_tokenizer)
    (chain.source / "05.txt").unlink()
    with pytest.raises(StageError, match="some of its documents are gone; give it among `corpora`"):
        chain.make(compact_engine.work, "compact", {}, data=[data], newest=[chain.look()])


def test_nothing_is_dropped_by_place_from_shards_that_lack_documents(chain: Chain, small_tokenizer: Path) -> None:
    data = shards(chain, chain.corpora[0], small_tokenizer)
    (chain.source / "05.txt").unlink()
    newest = chain.look()
    manifest = read_manifest(chain.corpora[0])
    write_manifest(
        chain.corpora[0],
        "corpus",
        manifest.facts | {"documents": manifest.facts["documents"] + 1},
        {},
        manifest.parents,
    )
    with pytest.raises(StageError, match="give the shards that were tokenized from it"):
        without_gone(chain, data, chain.corpora[0], newest)


def test_a_corpus_that_the_increment_did_not_know_is_not_merged(chain: Chain) -> None:
    (chain.source / "04.txt").unlink()
    merged = chain.make(gather_engine.work, "gather", {}, corpora=chain.corpora[:1], newest=chain.look())
    (chain.source / "05.txt").unlink()
    with pytest.raises(StageError, match="give corpora that were `known` to it"):
        chain.make(gather_engine.work, "gather", {}, corpora=[merged], newest=chain.look())


def test_shards_of_another_corpus_are_not_pruned(chain: Chain, small_tokenizer: Path) -> None:
    data = shards(chain, chain.corpora[0], small_tokenizer)
    (chain.source / "05.txt").unlink()
    newest = chain.look()
    with pytest.raises(StageError, match="none of the shards was tokenized from it"):
        without_gone(chain, data, newest, newest)


def test_a_corpus_that_says_nothing_of_what_is_gone_is_refused(chain: Chain) -> None:
    with pytest.raises(StageError, match="give a corpus made by `find_new`"):
        chain.make(gather_engine.work, "gather", {}, corpora=chain.corpora, newest=chain.corpora[0])


def without(chain: Chain, split: Split) -> Path:
    """Write a corpus with documents in the other split only."""
    spec = chain.spec | {"held_out": 1e-9 if split == "held_out" else 0.4999}
    for path in list(chain.source.iterdir()):
        if split == "train" and split_of(text_digest(path.read_text()), 0.4999) == "train":
            path.unlink()
    return chain.make(increment_engine.work, "increment", spec)


def test_a_tokenizer_needs_documents_to_train_on_and_no_others(chain: Chain) -> None:
    chain.make(tokenizer_engine.work, "tokenizer", {"vocab_size": 262}, corpus=without(chain, "held_out"))
    with pytest.raises(StageError, match="no documents to train a tokenizer on"):
        chain.make(tokenizer_engine.work, "tokenizer", {"vocab_size": 262}, corpus=without(chain, "train"))
