"""The engine that removes documents from tokenized shards that were deleted from the source.

In: "data", the shards of "corpus", and "newest", an increment whose `changes.json` lists what is gone. The shards'
sequences are the corpus's documents in the same order, so the remaining ones are copied and nothing is tokenized again.

Facts: those of the shards engine.
"""

import shutil
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tasks.data.changes import Changes
from tasks.data.documents import SPLITS, read_names, text_sizes
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
    keep = {split: np.array([key not in gone for key, _ in read_names(corpus, split)], bool) for split in SPLITS}
    names = {
        split: [name for name in facts.get("prefixes", {}) if name.startswith(split)] or [split] for split in SPLITS
    }
    of_prefix: dict[str, int] = {}
    for split in SPLITS:
        _copy(data, job, names[split], keep[split], dtype)
        for name in names[split]:
            of_prefix[name] = (job.output / f"{name}.bin").stat().st_size // dtype.itemsize
    tokens = {split: sum(of_prefix[name] for name in names[split]) for split in SPLITS}
    held_out_bytes = int(text_sizes(corpus, "held_out")[keep["held_out"]].sum())
    several = {"prefixes": {name: of_prefix[name] for name in names["train"]}} if len(names["train"]) > 1 else {}
    counted = {"tokens": tokens["train"], "held_out_tokens": tokens["held_out"], "held_out_bytes": held_out_bytes}
    job.finish(**facts | counted | several)
    shutil.rmtree(job.work)


def _copy(data: Path, job: Job, names: list[str], keep: Mask, dtype: TokenDtype) -> None:
    """Copy the ids of the documents to keep of one split, which is in some prefixes, and write their indexes. Raises
    StageError."""
    lengths = {name: read_lengths(data / f"{name}.idx") for name in names}
    if (found := sum(map(len, lengths.values()))) != len(keep):
        raise StageError(
            f"the shards have {found} documents in {', '.join(names)}, but the corpus has {len(keep)}; give the corpus "
            "that they were tokenized from"
        )
    start = 0
    for name, of_prefix in lengths.items():
        kept = keep[start : start + len(of_prefix)]
        start += len(of_prefix)
        ends = np.concatenate(([0], np.cumsum(of_prefix, dtype=np.int64))) * dtype.itemsize
        with (job.output / f"{name}.bin").open("wb") as ids:
            for first, last in _runs(kept):
                np.memmap(data / f"{name}.bin", np.uint8, "r")[ends[first] : ends[last]].tofile(ids)
        kept_lengths = job.work / f"{name}.lengths"
        kept_lengths.write_bytes(of_prefix[kept].tobytes())
        write_index(job.output / f"{name}.idx", kept_lengths, dtype)


def _runs(keep: Mask) -> list[tuple[int, int]]:
    """Runs of adjacent documents to keep: (first, last + 1) of each."""
    steps = np.flatnonzero(np.diff(keep, prepend=False, append=False))
    return [(int(first), int(last)) for first, last in steps.reshape(-1, 2)]


if __name__ == "__main__":
    main(work)
