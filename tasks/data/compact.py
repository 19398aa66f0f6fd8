"""The engine that makes one data set of the shards of several corpora, which have the same tokenizer, without the
documents that were deleted from the source.

In: "data.0", "data.1", …, in order. If some of their documents are gone: "corpora.0", …, the corpora that have these,
and "newest.0", an increment whose `changes.json` lists what is gone. Sequences are a corpus' documents in the same
order, so the ids of those that remain are copied, and nothing is tokenized again.

A part, `train` or `train-<source>` of each named source, has the sequences of all data in their order, in one
`.bin/.idx`, or in several of 256 MB and more (`train-00000`, …); `held_out` in one.

Facts: those of the shards engine.
"""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tasks.data.documents import name_batches, stem_of, text_sizes
from tasks.data.indexed_dataset import TokenDtype, read_lengths, token_dtype, write_index
from tasks.data.merge_parts import COPIED
from tasks.data.prefixes import HELD_OUT, consecutive
from tasks.data.source_changes import Changes
from tasks.data.spec import ShardsSpec
from tasks.job import Job, StageError, main
from tasks.manifest import Manifest, read_manifest

SMALLEST = 1 << 28  # bytes of each `.bin` of a part that has several
SHARED = ("vocab_size", "eos_id", "tokenizer_digest")

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Shard:
    """One `.bin/.idx` of the data."""

    ids: Path  # the .bin
    keep: Mask | None  # which sequences remain; None: all

    @property
    def lengths(self) -> npt.NDArray[np.int32]:
        """Of the sequences that remain."""
        lengths = read_lengths(self.ids.with_suffix(".idx"))
        return lengths if self.keep is None else lengths[self.keep]

    def copy_to(self, target: BinaryIO, dtype: TokenDtype) -> None:
        """Append the ids of the sequences that remain."""
        if self.keep is None:
            with self.ids.open("rb") as source:
                shutil.copyfileobj(source, target, COPIED)
        elif self.keep.any():
            lengths = read_lengths(self.ids.with_suffix(".idx"))
            ends = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64))) * dtype.itemsize
            ids = np.memmap(self.ids, np.uint8, "r")
            for first, last in _runs(self.keep):
                ids[ends[first] : ends[last]].tofile(target)


def work(job: Job) -> None:
    job.spec(ShardsSpec)
    data = [(folder, read_manifest(folder)) for folder in job.input_list("data")]
    shared = _shared([about.facts for _, about in data])
    dtype = token_dtype(shared["vocab_size"])
    changed = _changed(job, [about for _, about in data])
    gone = _gone(job)
    parts: dict[str, list[Shard]] = {}
    held_out_bytes = 0
    for folder, about in data:
        corpus = changed.get(about.parents.get("corpus", ""))
        for part, files in _files(folder, about).items():
            keep = _kept(corpus, part, gone) if corpus else None
            parts.setdefault(part, []).extend(_shards(files, keep))
            if part == HELD_OUT:
                kept_bytes = text_sizes(corpus, HELD_OUT)[keep].sum() if corpus else about.facts["held_out_bytes"]
                held_out_bytes += int(kept_bytes)
    job.empty_output()
    tokens: dict[str, dict[str, int]] = {}  # of each part, by prefix
    for number, (part, shards) in enumerate(sorted(parts.items())):
        job.progress(number, len(parts), "parts")
        sizes = [int(shard.lengths.sum(dtype=np.int64)) * dtype.itemsize for shard in shards]
        groups = [shards] if part == HELD_OUT else consecutive(shards, sizes, SMALLEST)
        names = [f"{part}-{place:05}" for place in range(len(groups))] if len(groups) > 1 else [part]
        tokens[part] = {name: _write(job, name, group, dtype) for name, group in zip(names, groups, strict=True)}
    held_out = sum(tokens.pop(HELD_OUT).values())
    sums = {part: sum(of.values()) for part, of in tokens.items()}
    facts: dict[str, Any] = {"tokens": sum(sums.values()), "held_out_tokens": held_out, **shared}
    facts["held_out_bytes"] = held_out_bytes
    if "train" not in sums:
        facts["sources"] = {part.removeprefix("train-"): size for part, size in sums.items()}
    if several := {name: size for of in tokens.values() if len(of) > 1 for name, size in of.items()}:
        facts["prefixes"] = several
    job.finish(**facts)
    shutil.rmtree(job.work)


def _shared(facts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The facts that all shards have in common. Raises StageError if they differ."""
    shared = {name: facts[0][name] for name in SHARED}
    for name in SHARED:
        if differing := {each[name] for each in facts} - {shared[name]}:
            raise StageError(
                f"{name}: {shared[name]} and {', '.join(map(str, differing))}; give shards of one tokenizer"
            )
    if len({"sources" in each for each in facts}) > 1:
        raise StageError("only some of these shards have named sources; give only shards with them, or only without")
    return shared


def _changed(job: Job, data: Sequence[Manifest]) -> dict[str, Path]:
    """The given corpora by their digests. Raises StageError if one is of no shards."""
    corpora = {job.inputs[name]["digest"]: job.input(name) for name in job.names("corpora")}
    for digest in corpora.keys() - {about.parents.get("corpus") for about in data}:
        raise StageError(f"corpus {digest[:12]}: none of the shards was tokenized from it; give the corpus of each")
    return corpora


def _gone(job: Job) -> pa.Array:
    """The ids of the documents that the source no longer has."""
    ids = [key for newest in job.input_list("newest") for key in Changes.read(newest).gone]
    return pa.array(ids, pa.string())


def _files(folder: Path, about: Manifest) -> dict[str, list[Path]]:
    """The `.bin` of each part of some shards, in order."""
    several = about.facts.get("prefixes", {})
    parts: dict[str, list[Path]] = {}
    for path in sorted(folder.glob("*.bin")):
        parts.setdefault(path.stem.rpartition("-")[0] if path.stem in several else path.stem, []).append(path)
    return parts


def _kept(corpus: Path, part: str, gone: pa.Array) -> Mask:
    """Which documents of a part are not gone."""
    paths = sorted(path for path in corpus.glob("*.parquet") if stem_of(path) == part)
    masks = (pc.invert(pc.is_in(batch["id"], gone)).to_numpy(zero_copy_only=False) for batch in name_batches(paths))
    return np.concatenate([np.empty(0, bool), *masks])


def _shards(files: Sequence[Path], keep: Mask | None) -> list[Shard]:
    """The shards of a part, with what remains of each. Raises StageError."""
    if keep is None:
        return [Shard(path, None) for path in files]
    counts = [len(read_lengths(path.with_suffix(".idx"))) for path in files]
    if (documents := sum(counts)) != len(keep):
        names = ", ".join(path.stem for path in files)
        raise StageError(
            f"the shards have {documents} documents in {names}, but the corpus has {len(keep)}; give the corpus that "
            "they were tokenized from"
        )
    masks = np.split(keep, np.cumsum(counts)[:-1])
    return [Shard(path, mask) for path, mask in zip(files, masks, strict=True)]


def _write(job: Job, name: str, shards: Sequence[Shard], dtype: TokenDtype) -> int:
    """Write one `.bin/.idx`; returns its tokens."""
    target, lengths = job.output / f"{name}.bin", job.work / f"{name}.lengths"
    with target.open("wb") as ids, lengths.open("wb") as sizes:
        for shard in shards:
            shard.copy_to(ids, dtype)
            sizes.write(shard.lengths.tobytes())
    write_index(target.with_suffix(".idx"), lengths, dtype)
    return target.stat().st_size // dtype.itemsize


def _runs(keep: Mask) -> Iterator[tuple[int, int]]:
    """Runs of adjacent sequences to keep: (first, last + 1) of each."""
    steps = np.flatnonzero(np.diff(keep, prepend=False, append=False))
    return ((int(first), int(last)) for first, last in steps.reshape(-1, 2))


if __name__ == "__main__":
    main(work)
