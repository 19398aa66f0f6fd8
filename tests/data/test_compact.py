"""Shards of several corpora as one dataset, with the same sequences in the same order."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from baton.tasks.core.job import StageError
from baton.tasks.core.manifest import write_manifest
from baton.tasks.data import compact as compact_engine
from baton.tasks.data.indexed_dataset import write_index
from baton.tasks.pretrain import megatron  # noqa: F401 - makes megatron.core fit this machine, so it comes first
from tests.data.by_hand import facts, new_job

# isort: split
from megatron.core.datasets.indexed_dataset import IndexedDataset

Sequences = Sequence[Sequence[int]]
SHARED = {"vocab_size": 600, "eos_id": 0, "tokenizer_digest": "t", "held_out_bytes": 7}


def shards(folder: Path, parts: Mapping[str, Sequences], **more: Any) -> Path:
    """Write shards with these sequences for each prefix."""
    folder.mkdir()
    sizes = {name: sum(map(len, sequences)) for name, sequences in parts.items()}
    for name, sequences in parts.items():
        ids = [number for sequence in sequences for number in sequence]
        (folder / f"{name}.bin").write_bytes(np.array(ids, "<u2").tobytes())
        lengths = folder / "lengths"
        lengths.write_bytes(np.array(list(map(len, sequences)), "<i4").tobytes())
        write_index(folder / f"{name}.idx", lengths, np.dtype(np.uint16))
        lengths.unlink()
    held_out = sizes.pop("held_out")
    write_manifest(
        folder, "tokenized_corpus", SHARED | {"tokens": sum(sizes.values()), "held_out_tokens": held_out} | more
    )
    return folder


def compacted(folder: Path, *data: Path) -> Path:
    job = new_job(folder / "compact", "compact", {}, data=list(data))
    compact_engine.work(job)
    return job.output


def read(folder: Path, name: str) -> list[list[int]]:
    dataset = IndexedDataset(str(folder / name))
    return [dataset[number].tolist() for number in range(len(dataset))]


def test_sequences_keep_their_order(tmp_path: Path) -> None:
    made = compacted(
        tmp_path,
        shards(tmp_path / "a", {"train": [[1, 0], [2, 3, 0]], "held_out": [[9, 0]]}),
        shards(tmp_path / "b", {"train": [], "held_out": []}),
        shards(tmp_path / "c", {"train": [[4, 0]], "held_out": [[8, 8, 0]]}),
    )
    assert read(made, "train") == [[1, 0], [2, 3, 0], [4, 0]]
    assert read(made, "held_out") == [[9, 0], [8, 8, 0]]
    assert facts(made) == SHARED | {"tokens": 7, "held_out_tokens": 5, "held_out_bytes": 21}


def test_named_sources_stay_apart(tmp_path: Path) -> None:
    held_out: dict[str, Sequences] = {"held_out": []}
    first = {"train-books": [[1, 0]], "train-web": [[2, 0]]} | held_out
    second = {"train-web": [[3, 3, 0]]} | held_out
    made = compacted(
        tmp_path,
        shards(tmp_path / "a", first, sources={"books": 2, "web": 2}),
        shards(tmp_path / "b", second, sources={"web": 3}),
    )
    assert read(made, "train-web") == [[2, 0], [3, 3, 0]]
    assert (facts(made)["tokens"], facts(made)["sources"]) == (7, {"books": 2, "web": 5})


def test_large_ones_are_in_several_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compact_engine, "SMALLEST", 8)
    several = {"train-00000": [[1, 1, 0]], "train-00001": [[2, 0]], "held_out": []}
    made = compacted(
        tmp_path,
        shards(tmp_path / "a", several, prefixes={"train-00000": 3, "train-00001": 2}),
        shards(tmp_path / "b", {"train": [[3, 3, 3, 0]], "held_out": []}),
        shards(tmp_path / "c", {"train": [[4, 0]], "held_out": []}),
    )
    assert facts(made)["prefixes"] == {"train-00000": 5, "train-00001": 6}
    assert read(made, "train-00000") + read(made, "train-00001") == [[1, 1, 0], [2, 0], [3, 3, 3, 0], [4, 0]]


@pytest.mark.parametrize(
    ("other", "named"),
    [
        ({"vocab_size": 700}, "vocab_size: 600 and 700"),
        ({"tokenizer_digest": "other"}, "tokenizer_digest: t and other"),
        ({"sources": {"web": 1}}, "only some of these shards have named sources"),
    ],
)
def test_what_cannot_be_one_data_set_is_refused(tmp_path: Path, other: dict[str, Any], named: str) -> None:
    first = shards(tmp_path / "a", {"train": [[1, 0]], "held_out": []})
    second = shards(tmp_path / "b", {"train": [[1, 0]], "held_out": []}, **other)
    with pytest.raises(StageError, match=named):
        compacted(tmp_path, first, second)
