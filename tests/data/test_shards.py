"""The shards engine: every token in its place, with any number of workers, killed or not."""

import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer as FastTokenizer

from tasks.data import corpus as corpus_engine
from tasks.data import shards as shards_engine
from tasks.data.documents import SPLITS, Split, read_documents
from tasks.data.encode import Encoded
from tasks.data.shards import Shard, Written
from tasks.data.source_spec import StdlibSource
from tasks.pretrain import megatron  # noqa: F401 - makes megatron.core fit this machine, so it comes first
from tests.data.by_hand import digest, facts, new_job, run, start

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


def test_a_note_vouches_for_what_is_written_and_for_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards_engine, "NOTE_INTERVAL_S", 0)
    shard = Shard(*(tmp_path / name for name in ("ids", "index", "lengths", "note")))
    pieces = [Encoded(b"ab" * length, np.array([length], "<i4").tobytes(), length) for length in (3, 1, 2)]
    assert shard.written() == Written()

    interrupted = shard.append(Written(), iter(pieces))
    next(interrupted)
    second = next(interrupted)
    del interrupted
    with shard.ids.open("ab") as ids:
        ids.write(b"half a piece")
    assert shard.written() == second == Written(groups=2, documents=2, id_bytes=8, text_bytes=4)

    (last,) = shard.append(second, iter(pieces[2:]))
    assert last == Written(groups=3, documents=3, id_bytes=12, text_bytes=6)
    assert shard.ids.read_bytes() == b"ab" * 6

    shard.ids.write_bytes(b"ab")  # shorter than recorded: the record is ignored
    assert shard.written() == Written()


@pytest.mark.parametrize("name", ["ids", "lengths", "note"])
def test_what_is_not_what_the_note_vouches_for_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    monkeypatch.setattr(shards_engine, "NOTE_INTERVAL_S", 0)
    shard = Shard(*(tmp_path / each for each in ("ids", "index", "lengths", "note")))
    list(shard.append(Written(), iter([Encoded(b"abab", np.array([2], "<i4").tobytes(), 2)])))
    content = bytearray((tmp_path / name).read_bytes())
    content[1] ^= 1
    (tmp_path / name).write_bytes(content)

    assert shard.written() == Written()
    assert f"{tmp_path / name} does not match its record" in capsys.readouterr().out


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Enough text to interrupt an engine in."""
    spec = {"source": {"kind": "files", "path": f"{StdlibSource().root()}/*.py"}}
    job = new_job(tmp_path_factory.mktemp("library"), "corpus", spec)
    corpus_engine.work(job)
    return job.output


def test_killed_in_the_middle_it_goes_on_from_there_to_the_same_digest(
    library: Path, tokenizer: Path, tmp_path: Path
) -> None:
    whole = run(new_job(tmp_path / "whole", "shards", {}, corpus=library, tokenizer=tokenizer))
    job = new_job(tmp_path / "killed", "shards", {}, corpus=library, tokenizer=tokenizer)
    process = start(job, cores=1)
    note = job.work / "train.json"
    while not note.exists():
        time.sleep(0.01)
        assert process.poll() is None
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert not (job.output / "manifest.json").exists()
    with (job.output / "train.bin").open("ab") as half:
        half.write(b"half a row group")  # not yet synced
    assert digest(run(job)) == digest(whole)
