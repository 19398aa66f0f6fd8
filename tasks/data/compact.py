"""The engine that makes one data set from the shards of several corpora with the same tokenizer, without the documents
that were deleted from the source.

In: "data.0", "data.1", …, in order. If some of their documents are gone: "newest.0", an increment whose `gone.arrow`
lists them, and "corpora.0", …, the corpora that have them, for the sizes of held-out texts. Sequences are a corpus'
documents in the same order, so the ids of the remaining ones are copied, and nothing is tokenized again.

A part, `train` or `train-<source>` for each named source, has the sequences of all data in their order, in one
`.bin/.idx`, or in several of 256 MB and more (`train-00000`, …); `held_out` is in one.

The facts are those of the shards engine.
"""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from baton.tasks.core.job import Job, StageError, main
from baton.tasks.core.manifest import Manifest, read_manifest
from baton.tasks.data.documents import text_sizes
from baton.tasks.data.gone import CorpusPart, GoneDocuments, Mask
from baton.tasks.data.indexed_dataset import TokenDtype, read_lengths, token_dtype, write_index
from baton.tasks.data.merge_parts import COPIED
from baton.tasks.data.prefixes import HELD_OUT, consecutive
from baton.tasks.data.spec import ShardsSpec

SMALLEST = 1 << 28  # bytes of each `.bin` of a part that has several
SHARED = ("vocab_size", "eos_id", "tokenizer_digest")


@dataclass(frozen=True)
class Shard:
    """One `.bin/.idx` of the data."""

    ids: Path  # the .bin
    lengths: npt.NDArray[np.int32]  # lengths of all sequences
    keep: Mask  # marks those that remain

    @property
    def kept(self) -> npt.NDArray[np.int32]:
        """The lengths of the sequences that remain."""
        return self.lengths[self.keep]

    def copy_to(self, target: BinaryIO, dtype: TokenDtype) -> None:
        """Append the ids of the sequences that remain."""
        if self.keep.all():
            with self.ids.open("rb") as source:
                shutil.copyfileobj(source, target, COPIED)
        elif self.keep.any():
            ends = np.concatenate(([0], np.cumsum(self.lengths, dtype=np.int64))) * dtype.itemsize
            ids = np.memmap(self.ids, np.uint8, "r")
            for first, last in _runs(self.keep):
                ids[ends[first] : ends[last]].tofile(target)


def work(job: Job) -> None:
    job.spec(ShardsSpec)
    data = [(folder, read_manifest(folder)) for folder in job.input_list("data")]
    shared = _shared([about.facts for _, about in data])
    dtype = token_dtype(shared["vocab_size"])
    gone = next((GoneDocuments.read(newest) for newest in job.input_list("newest")), None)
    corpora = {job.inputs[name]["digest"]: job.input(name) for name in job.names("corpora")}
    if strange := corpora.keys() - {about.parents.get("corpus") for _, about in data}:
        raise StageError(f"corpus {min(strange)[:12]}: none of the shards was tokenized from it; add its shards")
    parts: dict[str, list[Shard]] = {}
    held_out_bytes = 0
    for folder, about in data:
        shards_by_part = {part: [read_shard(path) for path in files] for part, files in _files(folder, about).items()}
        held_out_bytes += about.facts["held_out_bytes"]
        if gone:
            corpus = about.parents.get("corpus", "")
            held_out_bytes -= _lost_bytes(gone, corpus, corpora, shards_by_part)
            shards_by_part = {part: _remaining(gone, (corpus, part), shards) for part, shards in shards_by_part.items()}
        for part, part_shards in shards_by_part.items():
            parts.setdefault(part, []).extend(part_shards)
    job.empty_output()
    tokens: dict[str, dict[str, int]] = {}  # the tokens of each part, by prefix
    for number, (part, shards) in enumerate(sorted(parts.items())):
        job.progress(number, len(parts), "parts")
        sizes = [int(shard.kept.sum(dtype=np.int64)) * dtype.itemsize for shard in shards]
        groups = [shards] if part == HELD_OUT else consecutive(shards, sizes, SMALLEST)
        names = [f"{part}-{place:05}" for place in range(len(groups))] if len(groups) > 1 else [part]
        tokens[part] = {name: _write(job, name, group, dtype) for name, group in zip(names, groups, strict=True)}
    held_out = sum(tokens.pop(HELD_OUT).values())
    sums = {part: sum(prefixes.values()) for part, prefixes in tokens.items()}
    facts: dict[str, Any] = {"tokens": sum(sums.values()), "held_out_tokens": held_out, **shared}
    facts["held_out_bytes"] = held_out_bytes
    if "train" not in sums:
        facts["sources"] = {part.removeprefix("train-"): size for part, size in sums.items()}
    if several := {name: size for prefixes in tokens.values() if len(prefixes) > 1 for name, size in prefixes.items()}:
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


def read_shard(ids: Path) -> Shard:
    """Read a `.bin/.idx` of which all sequences remain."""
    lengths = read_lengths(ids.with_suffix(".idx"))
    return Shard(ids, lengths, np.ones(len(lengths), bool))


def _remaining(gone: GoneDocuments, part: CorpusPart, shards: Sequence[Shard]) -> list[Shard]:
    """The shards of a part of a corpus, without its documents that are gone. Raises StageError."""
    masks = gone.present(part, [len(shard.lengths) for shard in shards])
    return [replace(shard, keep=mask) for shard, mask in zip(shards, masks, strict=True)]


def _lost_bytes(
    gone: GoneDocuments, digest: str, corpora: Mapping[str, Path], shards: Mapping[str, Sequence[Shard]]
) -> int:
    """The size of a corpus' held-out texts that are gone. Checks that the shards have all documents of the corpus,
    since those that are gone are given by their places. Raises StageError."""
    if not gone.counts().get(digest):
        return 0
    if digest not in corpora:
        raise StageError(f"corpus {digest[:12]}: some of its documents are gone; give it among `corpora`")
    facts = read_manifest(corpora[digest]).facts
    held_out = sum(len(shard.lengths) for shard in shards.get(HELD_OUT, ()))
    trained = sum(len(shard.lengths) for part_shards in shards.values() for shard in part_shards) - held_out
    if (trained, held_out) != (facts["documents"], facts["held_out_documents"]):
        raise StageError(
            f"the shards have {trained} and {held_out} documents, but corpus {digest[:12]} has {facts['documents']} "
            f"and {facts['held_out_documents']}; give the shards that were tokenized from it"
        )
    rows = gone.rows.get((digest, HELD_OUT), np.empty(0, np.int64))
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
            sizes.write(shard.kept.tobytes())
    write_index(target.with_suffix(".idx"), lengths, dtype)
    return target.stat().st_size // dtype.itemsize


def _runs(keep: Mask) -> Iterator[tuple[int, int]]:
    """Runs of adjacent sequences to keep: (first, last + 1) of each."""
    steps = np.flatnonzero(np.diff(keep, prepend=False, append=False))
    return ((int(first), int(last)) for first, last in steps.reshape(-1, 2))


if __name__ == "__main__":
    main(work)
