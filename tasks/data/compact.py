"""The engine that makes one data set of the shards of several corpora, which have the same tokenizer, without the
documents that were deleted from the source.

In: "data.0", "data.1", …, in order. If some of their documents are gone: "newest.0", an increment whose `gone.arrow`
lists them, and "corpora.0", …, the corpora that have them, for the sizes of held-out texts. Sequences are a corpus'
documents in the same order, so the ids of those that remain are copied, and nothing is tokenized again.

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

from tasks.data.documents import text_sizes
from tasks.data.gone import Gone, Mask
from tasks.data.indexed_dataset import TokenDtype, read_lengths, token_dtype, write_index
from tasks.data.merge_parts import COPIED
from tasks.data.prefixes import HELD_OUT, consecutive
from tasks.data.spec import ShardsSpec
from tasks.job import Job, StageError, main
from tasks.manifest import Manifest, read_manifest

SMALLEST = 1 << 28  # bytes of each `.bin` of a part that has several
SHARED = ("vocab_size", "eos_id", "tokenizer_digest")


@dataclass(frozen=True)
class Shard:
    """One `.bin/.idx` of the data."""

    ids: Path  # the .bin
    keep: Mask  # which sequences remain

    @property
    def lengths(self) -> npt.NDArray[np.int32]:
        """Of the sequences that remain."""
        return read_lengths(self.ids.with_suffix(".idx"))[self.keep]

    def copy_to(self, target: BinaryIO, dtype: TokenDtype) -> None:
        """Append the ids of the sequences that remain."""
        if self.keep.all():
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
    gone = next((Gone.read(newest) for newest in job.input_list("newest")), Gone({}))
    corpora = {job.inputs[name]["digest"]: job.input(name) for name in job.names("corpora")}
    parts: dict[str, list[Shard]] = {}
    held_out_bytes = 0
    for folder, about in data:
        corpus = about.parents.get("corpus", "")
        for part, files in _files(folder, about).items():
            masks = gone.present((corpus, part), [len(read_lengths(path.with_suffix(".idx"))) for path in files])
            parts.setdefault(part, []).extend(map(Shard, files, masks))
        held_out_bytes += about.facts["held_out_bytes"] - _lost_bytes(gone, corpus, corpora)
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


def _lost_bytes(gone: Gone, digest: str, corpora: Mapping[str, Path]) -> int:
    """The size of a corpus' held-out texts that are gone. Raises StageError."""
    rows = gone.rows.get((digest, HELD_OUT))
    if rows is None:
        return 0
    if digest not in corpora:
        raise StageError(f"corpus {digest[:12]}: some of its held-out documents are gone; give it among `corpora`")
    return int(text_sizes(corpora[digest], HELD_OUT)[rows].sum())


def _files(folder: Path, about: Manifest) -> dict[str, list[Path]]:
    """The `.bin` of each part of some shards, in order."""
    several = about.facts.get("prefixes", {})
    parts: dict[str, list[Path]] = {}
    for path in sorted(folder.glob("*.bin")):
        parts.setdefault(path.stem.rpartition("-")[0] if path.stem in several else path.stem, []).append(path)
    return parts


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
