"""The engine that removes documents from tokenized shards that were deleted from the source.

In: "data", the shards of "corpus", and "newest", an increment whose `changes.json` lists what is gone. The shards'
sequences are the corpus's documents in the same order, so the remaining ones are copied and nothing is tokenized again.

Facts: those of the shards engine.
"""

import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tasks.data.documents import Split, name_batches, split_files, stem, text_sizes
from tasks.data.indexed_dataset import TokenDtype, read_lengths, token_dtype, write_index
from tasks.data.source_changes import Changes
from tasks.data.spec import ShardsSpec
from tasks.job import Job, StageError, main
from tasks.manifest import read_manifest

Mask = npt.NDArray[np.bool_]


def work(job: Job) -> None:
    job.spec(ShardsSpec)
    data, corpus = job.input("data"), job.input("corpus")
    gone = pa.array(Changes.read(job.input("newest")).gone, pa.string())
    facts = read_manifest(data).facts
    dtype = token_dtype(facts["vocab_size"])
    job.empty_output()
    named = sorted(facts.get("sources", {}))
    several = facts.get("prefixes", {})
    trained, tokens, kept = dict[str, int](), dict[str, int](), np.empty(0, bool)
    parts: list[tuple[Split, str | None]] = [*(("train", name) for name in named or [None]), ("held_out", None)]
    for split, source in parts:
        kept = _kept(split_files(corpus, split, source), gone)
        of = stem(split, source)
        names = [name for name in several if name.rpartition("-")[0] == of] or [of]
        _copy(data, job, names, kept, dtype)
        of_names = {name: (job.output / f"{name}.bin").stat().st_size // dtype.itemsize for name in names}
        trained |= of_names if split == "train" else {}
        tokens[of] = sum(of_names.values())
    held_out_bytes = int(text_sizes(corpus, "held_out")[kept].sum())  # the last part is the held-out split
    held_out = {"held_out_tokens": tokens.pop("held_out"), "held_out_bytes": held_out_bytes}
    of_sources = {"sources": {name: tokens[stem("train", name)] for name in named}} if named else {}
    of_prefixes = {"prefixes": {name: trained[name] for name in several}} if several else {}
    job.finish(**facts | {"tokens": sum(tokens.values())} | held_out | of_sources | of_prefixes)
    shutil.rmtree(job.work)


def _kept(paths: Sequence[Path], gone: pa.Array) -> Mask:
    """Which documents of a corpus' files are not gone."""
    masks = (pc.invert(pc.is_in(batch["id"], gone)).to_numpy(zero_copy_only=False) for batch in name_batches(paths))
    return np.concatenate([np.empty(0, bool), *masks])


def _copy(data: Path, job: Job, names: list[str], keep: Mask, dtype: TokenDtype) -> None:
    """Copy the ids of the documents to keep of one part, which is in some `.bin/.idx`, and write their indexes. Raises
    StageError."""
    lengths = {name: read_lengths(data / f"{name}.idx") for name in names}
    if (documents := sum(map(len, lengths.values()))) != len(keep):
        raise StageError(
            f"the shards have {documents} documents in {', '.join(names)}, but the corpus has {len(keep)}; give the "
            "corpus that they were tokenized from"
        )
    start = 0
    for name, of_name in lengths.items():
        kept = keep[start : start + len(of_name)]
        start += len(of_name)
        ends = np.concatenate(([0], np.cumsum(of_name, dtype=np.int64))) * dtype.itemsize
        with (job.output / f"{name}.bin").open("wb") as ids:
            mapped = np.memmap(data / f"{name}.bin", np.uint8, "r") if kept.any() else np.empty(0, np.uint8)
            for first, last in _runs(kept):
                mapped[ends[first] : ends[last]].tofile(ids)
        kept_lengths = job.work / f"{name}.lengths"
        kept_lengths.write_bytes(of_name[kept].tobytes())
        write_index(job.output / f"{name}.idx", kept_lengths, dtype)


def _runs(keep: Mask) -> list[tuple[int, int]]:
    """Runs of adjacent documents to keep: (first, last + 1) of each."""
    steps = np.flatnonzero(np.diff(keep, prepend=False, append=False))
    return [(int(first), int(last)) for first, last in steps.reshape(-1, 2)]


if __name__ == "__main__":
    main(work)
