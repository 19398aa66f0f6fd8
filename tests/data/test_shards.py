"""The shards engine: every token is in its place, for any number of workers, killed or not."""

import json
import os
import shutil
import signal
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as FastTokenizer

from baton.tasks.core.job import Job
from baton.tasks.core.manifest import FileEntry, Manifest
from baton.tasks.data import corpus as corpus_engine
from baton.tasks.data import prefixes as prefixes_module
from baton.tasks.data import shards as shards_engine
from baton.tasks.data import tokenizer as tokenizer_engine
from baton.tasks.data.documents import SPLITS, Split, read_documents, split_files
from baton.tasks.data.prefixes import MOST, prefixes
from baton.tasks.data.source_spec import StdlibSource
from baton.tasks.pretrain import megatron  # noqa: F401 - makes megatron.core fit this machine, so it comes first
from tests.data.by_hand import digest, facts, new_job, run, start
from tests.tokenizer_folders import BEGIN, END, PAD, byte_level, folder

# isort: split
from megatron.core.datasets.indexed_dataset import IndexedDataset


@pytest.fixture(scope="module")
def shards(corpus: Path, tokenizer: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(new_job(tmp_path_factory.mktemp("shards"), "shards", {}, corpus=corpus, tokenizer=tokenizer))


@pytest.mark.parametrize("split", SPLITS)
def test_a_sequence_is_a_document_and_its_end(shards: Path, corpus: Path, tokenizer: Path, split: Split) -> None:
    plain = FastTokenizer.from_file(str(tokenizer / "tokenizer.json"))
    dataset = IndexedDataset(str(shards / split))
    documents = list(read_documents(corpus, split))
    assert len(dataset) == len(documents)
    for ids, item in zip((dataset[number].tolist() for number in range(len(dataset))), documents, strict=True):
        assert ids[-1] == 0
        assert plain.decode(ids[:-1], skip_special_tokens=False) == item.text


def test_the_facts_count_what_is_there(shards: Path, corpus: Path, tokenizer: Path) -> None:
    assert facts(shards) == {
        "tokens": len(np.fromfile(shards / "train.bin", dtype="<u2")),
        "held_out_tokens": len(np.fromfile(shards / "held_out.bin", dtype="<u2")),
        "held_out_bytes": facts(corpus)["held_out_bytes"],
        "vocab_size": 600,
        "eos_id": 0,
        "tokenizer_digest": digest(tokenizer),
    }


def test_the_number_of_workers_changes_nothing(shards: Path, corpus: Path, tokenizer: Path, tmp_path: Path) -> None:
    alone = run(new_job(tmp_path, "shards", {}, corpus=corpus, tokenizer=tokenizer), cores=1)
    assert digest(alone) == digest(shards)


def test_a_special_token_that_a_document_spells_is_only_text(tokenizer: Path, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for number in range(9):
        (tmp_path / "in" / f"{number}.txt").write_text(f"{number} <|endoftext|> and <|im_start|>system\n")
    spec = {"source": {"kind": "files", "path": str(tmp_path / "in")}, "held_out": 0.4}
    corpus = new_job(tmp_path / "corpus", "corpus", spec)
    corpus_engine.work(corpus)
    job = new_job(tmp_path / "shards", "shards", {}, corpus=corpus.output, tokenizer=tokenizer)
    shards_engine.work(job)
    ids = np.fromfile(job.output / "train.bin", dtype="<u2")
    assert (ids == 0).sum() == facts(corpus.output)["documents"]  # exactly one per document
    assert not np.isin(ids, (2, 3)).any()  # <|im_start|>, <|im_end|>


@pytest.mark.parametrize(("begin", "first"), [(BEGIN, [2]), (END, [])], ids=["BOS", "the end of text as BOS"])
def test_a_document_begins_as_the_tokenizer_begins_a_text(begin: str, first: list[int], tmp_path: Path) -> None:
    """A model that has always seen BOS performs worse without it (lm-eval#1465). If the token that ends a document is
    also BOS, it begins the next document."""
    bpe = byte_level(END, PAD, BEGIN, begin=begin)
    theirs = folder(tmp_path / "theirs", bpe, tokenizer_class="LlamaTokenizerFast", bos_token=begin)
    (tmp_path / "in").mkdir()
    texts = [f"The river was  calm in {number}, {begin}.\n" for number in range(9)]
    for number, text in enumerate(texts):
        (tmp_path / "in" / f"{number}.txt").write_text(text)
    spec = {"source": {"kind": "files", "path": str(tmp_path / "in")}, "held_out": 0.4}
    corpus = new_job(tmp_path / "corpus", "corpus", spec)
    corpus_engine.work(corpus)
    tokenizer = new_job(tmp_path / "tokenizer", "tokenizer", {"existing": str(theirs)}, corpus=corpus.output)
    tokenizer_engine.work(tokenizer)
    assert (tokenizer.output / "tokenizer.json").read_bytes() == (theirs / "tokenizer.json").read_bytes()
    shards = new_job(tmp_path / "shards", "shards", {}, corpus=corpus.output, tokenizer=tokenizer.output)
    shards_engine.work(shards)

    bpe.encode_special_tokens = True
    for split in SPLITS:
        dataset = IndexedDataset(str(shards.output / split))
        sequences = [dataset[number].tolist() for number in range(len(dataset))]
        documents = [
            bpe.encode(item.text, add_special_tokens=False).ids for item in read_documents(corpus.output, split)
        ]
        assert sequences == [[*first, *ids, 0] for ids in documents] and documents


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus of several partitions, some of which have several parts."""
    source = {"kind": "files", "path": f"{StdlibSource().root()}/*.py"}
    job = new_job(tmp_path_factory.mktemp("large"), "corpus", {"source": source, "partitions": {"size_mb": 0.4}})
    corpus_engine.work(job)
    assert len(split_files(job.output, "train")) > 3
    return job.output


@pytest.fixture(scope="module")
def large_shards(large: Path, tokenizer: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shards that were written by one worker."""
    spec = {"concurrency": 1}
    job = new_job(tmp_path_factory.mktemp("large-shards"), "shards", spec, corpus=large, tokenizer=tokenizer)
    shards_engine.work(job)
    return job.output


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BATON_HOME", str(tmp_path / "home"))
    return tmp_path / "home" / "partitions"


def test_a_large_corpus_is_in_several_prefixes_with_the_same_documents(
    large: Path, large_shards: Path, tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    several = new_job(tmp_path, "shards", {"concurrency": 1}, corpus=large, tokenizer=tokenizer)
    monkeypatch.setattr(prefixes_module, "SMALLEST", 300_000)
    shards_engine.work(several)
    found, names = facts(several.output), sorted(facts(several.output)["prefixes"])
    assert len(names) > 1
    assert sum(found["prefixes"].values()) == found["tokens"] == facts(large_shards)["tokens"]
    ids = b"".join((several.output / f"{name}.bin").read_bytes() for name in names)
    assert ids == (large_shards / "train.bin").read_bytes()
    documents = [len(IndexedDataset(str(several.output / name))) for name in names]
    assert sum(documents) == len(IndexedDataset(str(large_shards / "train"))) == facts(large)["documents"]


@given(
    st.lists(st.tuples(st.sampled_from("abcd"), st.integers(1, 10**9)), min_size=1, max_size=600),
    st.integers(1, 10**8),
)
def test_there_are_at_most_200_prefixes_of_neighbouring_files(files: list[tuple[str, int]], smallest: int) -> None:
    names = sorted({name for name, _ in files})
    sizes = {f"train-{name}-{number:05}.parquet": size for number, (name, size) in enumerate(files)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prefixes_module, "SMALLEST", smallest)
        listed = {name: FileEntry(size, "") for name, size in sizes.items()}
        made = prefixes(Manifest("corpus", "", listed, {"sources": {name: {} for name in names}}))
    assert len(made) <= MOST
    trained = [[*prefix.files] for prefix in made if prefix.stem != "held_out"]
    assert [name for group in trained for name in group] == sorted(sizes)
    assert len({prefix.name for prefix in made}) == len(made)
    for prefix in made:
        size = sum(sizes[name] for name in prefix.files)
        assert size >= smallest or prefix.name == prefix.stem


def test_only_a_changed_file_is_tokenized_again(tokenizer: Path, tmp_path: Path, home: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for number in range(8):
        lines = (json.dumps({"text": f"{number} says {row} and some more words"}) for row in range(400))
        (source / f"{number}.jsonl").write_text("\n".join(lines) + "\n")

    def tokens(name: str) -> Path:
        spec = {"source": {"kind": "jsonl", "path": str(source)}, "partitions": {"size_mb": 0.01}, "held_out": 0.3}
        corpus = new_job(tmp_path / f"{name}-corpus", "corpus", spec)
        corpus_engine.work(corpus)
        job = new_job(tmp_path / name, "shards", {"concurrency": 1}, corpus=corpus.output, tokenizer=tokenizer)
        shards_engine.work(job)
        return job.output

    tokens("one")
    before = {path.name for path in home.glob("*.tokens")}
    assert len(before) >= 8
    with (source / "5.jsonl").open("a") as file:
        file.write(json.dumps({"text": "one more"}) + "\n")
    changed = tokens("two")
    assert 1 <= len({path.name for path in home.glob("*.tokens")} - before) <= 2  # train and held-out split
    home.rename(tmp_path / "kept")
    assert digest(tokens("anew")) == digest(changed)


def test_the_number_of_workers_on_several_partitions_changes_nothing(
    large: Path, large_shards: Path, tokenizer: Path, tmp_path: Path, home: Path
) -> None:
    for number in (3, 7):
        job = new_job(tmp_path / f"{number}", "shards", {"concurrency": number}, corpus=large, tokenizer=tokenizer)
        shards_engine.work(job)
        assert digest(job.output) == digest(large_shards)
        home.rename(tmp_path / f"kept-{number}")


def test_killed_in_the_middle_it_goes_on_with_the_parts_that_are_missing(
    large: Path, large_shards: Path, tokenizer: Path, tmp_path: Path, home: Path
) -> None:
    job = new_job(tmp_path / "killed", "shards", {"concurrency": 2}, corpus=large, tokenizer=tokenizer)
    process = start(job)
    while len(before := made_parts(job)) < 5:
        time.sleep(0.01)
        assert process.poll() is None
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    before = made_parts(job)
    shutil.rmtree(home)  # the engine must continue from the job's folder alone
    again = start(job)
    while len(after := made_parts(job)) <= len(before):
        time.sleep(0.01)
        assert again.poll() is None
    assert before.items() <= after.items()
    output, _ = again.communicate(timeout=100)
    assert again.returncode == 0, output
    assert digest(job.output) == digest(large_shards)


def made_parts(job: Job) -> dict[str, float]:
    """Return the finished parts and the times when they were written."""
    found = {}
    for path in (job.directory / "tokens").glob("*.tokens/manifest.json"):
        with suppress(FileNotFoundError):  # removed at the end of the engine
            found[path.parent.name] = path.stat().st_mtime
    return found
