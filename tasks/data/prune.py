"""The engine that takes documents out of shards: those that are gone from the source.

In: "data", the shards of "corpus", and "newest", an increment whose `changes.json` says what is gone. The
sequences of shards are the corpus's documents in its order, so what stays is copied as it is, and
nothing is tokenized.

Facts: those of the shards engine.
"""

import shutil
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tasks.data.changes import Changes
from tasks.data.documents import SPLITS, Split, read_names, text_sizes
from tasks.data.indexed_dataset import TokenDtype, read_lengths, token_dtype, write_index
from tasks.data.spec import ShardsSpec
from tasks.job import Job, StageError, main
from tasks.manifest import read_manifest

Mask = npt.NDArray[np.bool_]


def work(job: Job) -> None:
    job.spec(ShardsSpec)
    data, corpus = job.input("data"), job.input("corpus")
    gone = set(Changes.read(job.input("newest")).gone)
    facts = read_manifest(data).facts
    dtype = token_dtype(facts["vocab_size"])
    job.empty_output()
    stays = {split: np.array([each not in gone for each, _ in read_names(corpus, split)], bool) for split in SPLITS}
    for split in SPLITS:
        _copy(data, job, split, stays[split], dtype)
    tokens = {split: (job.output / f"{split}.bin").stat().st_size // dtype.itemsize for split in SPLITS}
    held_out_bytes = int(text_sizes(corpus, "held_out")[stays["held_out"]].sum())
    job.finish(
        **facts | {"tokens": tokens["train"], "held_out_tokens": tokens["held_out"], "held_out_bytes": held_out_bytes}
    )
    shutil.rmtree(job.work)


def _copy(data: Path, job: Job, split: Split, stays: Mask, dtype: TokenDtype) -> None:
    """One split's ids and index, of the documents that stay. Raises StageError."""
    lengths = read_lengths(data / f"{split}.idx")
    if len(lengths) != len(stays):
        raise StageError(
            f"the shards have {len(lengths)} {split} documents and the corpus {len(stays)}: they were not made of it; "
            "give the corpus that they were tokenized from"
        )
    ends = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64))) * dtype.itemsize
    with (job.output / f"{split}.bin").open("wb") as kept:
        for first, last in _runs(stays):
            np.memmap(data / f"{split}.bin", np.uint8, "r")[ends[first] : ends[last]].tofile(kept)
    left = job.work / f"{split}.lengths"
    left.write_bytes(lengths[stays].tobytes())
    write_index(job.output / f"{split}.idx", left, dtype)


def _runs(stays: Mask) -> list[tuple[int, int]]:
    """Where neighbours stay: (first, last + 1) of each run."""
    steps = np.flatnonzero(np.diff(stays, prepend=False, append=False))
    return [(int(first), int(last)) for first, last in steps.reshape(-1, 2)]


if __name__ == "__main__":
    main(work)
