"""A pod fetches only the files that its stage needs, since corpora and checkpoints are larger than its disk."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any
from uuid import uuid4

import numpy as np
import pytest

from baton.tasks.core.manifest import RECORD, digest_in, write_manifest
from baton.tasks.core.stored import fetch, send
from baton.tasks.data.documents import Split, SplitWriter, document, read_documents
from baton.tasks.data.gone import CorpusPart, GoneDocuments
from baton.tasks.data.source_changes import Changes
from tests.s3 import S3
from tests.stage.pod import Pod, start
from tests.tokenizer_folders import byte_level, folder

FACTS = {"documents": 1, "held_out_documents": 1, "bytes": 9, "held_out_bytes": 9}
FACTS |= {"duplicates": 0, "empty": 0, "invalid_utf8": 0}


def corpus(
    place: Path,
    storage: str,
    text: str,
    gone: Mapping[CorpusPart, int] = MappingProxyType({}),
    sources: Sequence[str] = (),
    known: Sequence[str] = (),
) -> str:
    """Send an increment with a document in each split of each source, and return its address."""
    place.mkdir()
    named: list[str | None] = [*sources] or [None]
    parts: list[tuple[Split, str | None]] = [("held_out", None), *(("train", name) for name in named)]
    for split, source in parts:
        writer = SplitWriter(place, split, source)
        writer.add(document("", f"{split} {source or ''} {text}"))
        writer.close()
    Changes().write(place)
    digests = [digest_in(address.rpartition("/")[2]) for address in known]
    GoneDocuments({part: np.array([row]) for part, row in gone.items()}, digests).write(place)
    (place / RECORD).mkdir()
    (place / RECORD / "samples.json").write_text("[]")
    return _send(place, "corpus", FACTS, storage)


def _send(folder: Path, kind: str, facts: dict[str, Any], storage: str) -> str:
    """Send a sealed folder, and return its address."""
    write_manifest(folder, kind, facts)
    return send(str(folder), storage)


def fetched(pod: Pod) -> list[str]:
    """Return the names of the files in a pod's cache, without manifests."""
    cached = [path for folder in ("artifacts", "parts") for path in (pod.home / folder).rglob("*")]
    files = [path for path in cached if path.is_file() and path.suffix != ".lock"]
    return sorted(path.name for path in files if path.name != "manifest.json")


@pytest.mark.long
def test_held_out_text_is_merged_without_the_training_text(s3: S3, tmp_path: Path) -> None:
    with s3.flyte(tmp_path):
        storage = f"{s3.address}/{uuid4().hex}"
        earlier = [corpus(tmp_path / "0", storage, "a"), corpus(tmp_path / "1", storage, "b")]
        newest = corpus(
            tmp_path / "2", storage, "c", {(digest_in(earlier[0].rpartition("/")[2]), "held_out"): 0}, known=earlier
        )
        pod = start(s3, tmp_path, storage, "gather", json.dumps({"train": False}), *earlier, newest)
        made = pod.succeed()
        merged = fetch(made["place"], made["digest"])
    assert [item.text for item in read_documents(merged, "held_out")] == ["held_out  b"]
    assert fetched(pod) == ["gone.arrow", "gone.json", "held_out-00000.parquet", "held_out-00000.parquet"]


def send_inputs(tmp_path: Path, storage: str, sources: Sequence[str]) -> tuple[str, str]:
    """Send a corpus with these sources and a tokenizer, and return their addresses."""
    tokenizer = folder(tmp_path / "tokenizer", byte_level())
    facts = {"vocab_size": 400, "eos_id": 0, "pad_id": 1}
    known = _send(tokenizer, "tokenizer", facts, storage)
    return corpus(tmp_path / "0", storage, "some text", sources=sources), known


def parquet(pod: Pod) -> list[str]:
    return [name for name in fetched(pod) if name.endswith(".parquet")]


def tokenized(s3: S3, tmp_path: Path, sources: Sequence[str]) -> tuple[list[list[str]], list[int]]:
    """Tokenize a corpus with these sources in two pods. Return the files that each pod fetched, and the number of
    parts."""
    with s3.flyte(tmp_path):
        storage = f"{s3.address}/{uuid4().hex}"
        source, known = send_inputs(tmp_path, storage, sources)
        needed, parts = list[list[str]](), list[int]()
        shares = [json.dumps({"number": number, "machines": 2}) for number in range(2)]
        pods = [start(s3, tmp_path, storage, "encode", share, source, known) for share in shares]
        for pod in pods:
            made = pod.succeed()
            parts.append(len(json.loads((fetch(made["place"], made["digest"]) / "partitions.json").read_text())))
            needed.append(parquet(pod))
        encoded = [key for key in s3.keys(f"{storage}/partitions".removeprefix("s3://flyte/")) if ".tokens/man" in key]
        assert len(encoded) == sum(parts)
    return needed, parts


@pytest.mark.long
def test_a_pod_that_tokenizes_a_share_fetches_its_files(s3: S3, tmp_path: Path) -> None:
    needed, parts = tokenized(s3, tmp_path, "abcdefg")
    assert (list(map(len, needed)), parts) == ([4, 4], [4, 4])
    assert len({name for names in needed for name in names}) == 8


@pytest.mark.long
def test_few_files_are_shared_in_parts(s3: S3, tmp_path: Path) -> None:
    needed, parts = tokenized(s3, tmp_path, "a")
    assert (list(map(len, needed)), sorted(parts)) == ([2, 2], [1, 1])


@pytest.mark.long
def test_the_pod_after_the_shares_fetches_only_files_with_missing_parts(s3: S3, tmp_path: Path) -> None:
    with s3.flyte(tmp_path):
        storage, anew = (f"{s3.address}/{uuid4().hex}" for _ in range(2))
        sources = send_inputs(tmp_path, storage, "abcdefg")
        start(s3, tmp_path, storage, "encode", "{}", *sources).succeed()
        stored = s3.keys(f"{storage}/partitions".removeprefix("s3://flyte/"))
        lost = next(key for key in stored if key.endswith("/manifest.json"))
        s3.delete(lost)
        last = start(s3, tmp_path, storage, "tokenize", '{"machines": 2}', *sources)
        made = last.succeed()
        alone = start(s3, tmp_path, anew, "tokenize", "{}", *sources)
        assert alone.succeed()["digest"] == made["digest"]
    assert len(parquet(alone)) == 8
    assert len(parquet(last)) <= 2  # one to choose the encoder, and the one with the lost part
    assert lost in s3.keys(lost)


@pytest.mark.long
def test_a_report_needs_no_texts_and_no_weights(s3: S3, tmp_path: Path) -> None:
    with s3.flyte(tmp_path):
        storage = f"{s3.address}/{uuid4().hex}"
        model = tmp_path / "model"
        model.mkdir()
        (model / "model.safetensors").write_bytes(b"weights")
        facts = {"label": "base", "parameters": 1, "architecture": "", "dtype": "", "vocab_size": 1, "max_positions": 1}
        sent = _send(model, "hf_model", facts, storage)
        pod = start(s3, tmp_path, storage, "report", "{}", corpus(tmp_path / "0", storage, "a"), sent)
        pod.succeed()
    assert fetched(pod) == ["changes.json", "gone.json", "report.md", "samples.json"]
