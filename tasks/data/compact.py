"""The engine that makes one data set of the shards of several corpora, which have the same tokenizer.

In: "data.0", "data.1", …, in order. A part, `train` or `train-<source>` of each named source, has the sequences of all
of them in their order, in one `.bin/.idx`, or in several of 256 MB and more (`train-00000`, …); `held_out` in one.

Facts: those of the shards engine.
"""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tasks.data.indexed_dataset import TokenDtype, read_lengths, token_dtype, write_index
from tasks.data.merge_parts import concatenate
from tasks.data.prefixes import HELD_OUT, consecutive
from tasks.data.spec import ShardsSpec
from tasks.job import Job, StageError, main
from tasks.manifest import read_manifest

SMALLEST = 1 << 28  # bytes of each `.bin` of a part that has several
SHARED = ("vocab_size", "eos_id", "tokenizer_digest")


def work(job: Job) -> None:
    job.spec(ShardsSpec)
    data = [job.input(f"data.{number}") for number in range(len(job.inputs))]
    facts = [read_manifest(each).facts for each in data]
    shared = {name: facts[0][name] for name in SHARED}
    for name in SHARED:
        if differing := {each[name] for each in facts} - {shared[name]}:
            raise StageError(
                f"{name}: {shared[name]} and {', '.join(map(str, differing))}; give shards of one tokenizer"
            )
    dtype = token_dtype(shared["vocab_size"])
    files = _files(data, facts)
    job.empty_output()
    tokens: dict[str, dict[str, int]] = {}  # of each part, by prefix
    for number, (part, paths) in enumerate(files.items()):
        job.progress(number, len(files), "parts")
        groups = [paths] if part == HELD_OUT else consecutive(paths, [path.stat().st_size for path in paths], SMALLEST)
        names = [f"{part}-{place:05}" for place in range(len(groups))] if len(groups) > 1 else [part]
        tokens[part] = {name: _write(job, name, group, dtype) for name, group in zip(names, groups, strict=True)}
    held_out = sum(tokens.pop(HELD_OUT).values())
    sums = {part: sum(of.values()) for part, of in tokens.items()}
    about: dict[str, Any] = {"tokens": sum(sums.values()), "held_out_tokens": held_out, **shared}
    about["held_out_bytes"] = sum(each["held_out_bytes"] for each in facts)
    if "train" not in sums:
        about["sources"] = {part.removeprefix("train-"): size for part, size in sums.items()}
    if several := {name: size for of in tokens.values() if len(of) > 1 for name, size in of.items()}:
        about["prefixes"] = several
    job.finish(**about)
    shutil.rmtree(job.work)


def _files(data: Sequence[Path], facts: Sequence[dict[str, Any]]) -> dict[str, list[Path]]:
    """The `.bin` of each part, in order. Raises StageError if only some have named sources."""
    if len({"sources" in each for each in facts}) > 1:
        raise StageError("only some of these shards have named sources; give only shards with them, or only without")
    parts: dict[str, list[Path]] = {}
    for folder, of in zip(data, facts, strict=True):
        several = of.get("prefixes", {})
        for path in sorted(folder.glob("*.bin")):
            part = path.stem.rpartition("-")[0] if path.stem in several else path.stem
            parts.setdefault(part, []).append(path)
    return dict(sorted(parts.items()))


def _write(job: Job, name: str, paths: Sequence[Path], dtype: TokenDtype) -> int:
    """Write one `.bin/.idx`; returns its tokens."""
    target = job.output / f"{name}.bin"
    concatenate(paths, target)
    lengths = job.work / f"{name}.lengths"
    with lengths.open("wb") as file:
        for path in paths:
            file.write(read_lengths(path.with_suffix(".idx")).tobytes())
    write_index(target.with_suffix(".idx"), lengths, dtype)
    return target.stat().st_size // dtype.itemsize


if __name__ == "__main__":
    main(work)
