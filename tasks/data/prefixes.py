"""Which `.bin/.idx` a corpus is tokenized into, its *prefixes*, and in which parts the work is done.

    held_out                    the held-out split
    train                       the train split, or train-web of each named source
    train-00000, train-00001    successive parts of it, if it is large

A corpus' file is of one partition, and neighbouring files make a prefix, so that a large corpus is never merged. There
are at most 200, since Megatron's index building slows down with their number and its memory maps fail past some 590
(Megatron-Bridge #3968). Where a prefix ends, and which parts it has, depends only on the corpus' files.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pyarrow.parquet as pq

from tasks.data.documents import Split, split_files, stem
from tasks.manifest import Manifest

T = TypeVar("T")

HELD_OUT: Split = "held_out"
MOST = 200
SMALLEST = 64_000_000  # bytes of Parquet, about 200 MB of text: below, Megatron's sequences at its end count
PARTS = 16  # of a file, for as many workers


@dataclass(frozen=True)
class Prefix:
    """One `.bin/.idx` to make."""

    name: str
    stem: str  # the split, or a named source's part of it
    files: tuple[Path, ...]


@dataclass(frozen=True)
class RowGroups:
    """Row groups of a file."""

    file: Path
    start: int
    end: int
    size: int  # in bytes, about


def prefixes(corpus: Path, about: Manifest) -> list[Prefix]:
    """A corpus' prefixes, by its manifest: the train split's in the order of the sources, then the held-out one."""
    sources: Sequence[str | None] = sorted(about.facts.get("sources", {})) or [None]
    trained = {stem("train", name): split_files(corpus, "train", name) for name in sources}
    size = sum(about.files[path.name].size for paths in trained.values() for path in paths)
    target = max(SMALLEST, -(-size // (MOST - 1 - len(sources))))
    prefixes: list[Prefix] = []
    for of, paths in trained.items():
        groups = consecutive(paths, [about.files[path.name].size for path in paths], target)
        names = [f"{of}-{number:05}" for number in range(len(groups))] if len(groups) > 1 else [of]
        prefixes += [Prefix(name, of, files) for name, files in zip(names, groups, strict=True)]
    return [*prefixes, Prefix(HELD_OUT, HELD_OUT, tuple(split_files(corpus, HELD_OUT, None)))]


def consecutive(files: Sequence[T], sizes: Sequence[int], target: int) -> list[tuple[T, ...]]:
    """Neighbouring files, of at least `target` bytes together; all in one if they have less."""
    groups: list[tuple[T, ...]] = []
    start = size = 0
    for number, more in enumerate(sizes):
        size += more
        if size >= target:
            groups.append(tuple(files[start : number + 1]))
            start, size = number + 1, 0
    rest = tuple(files[start:])
    return [*groups[:-1], (*groups[-1], *rest)] if groups else [rest]


def parts(file: Path) -> list[RowGroups]:
    """What one worker tokenizes at a time. Only reads the file's footer."""
    groups = pq.read_metadata(file).num_row_groups
    size, step = file.stat().st_size, -(-groups // PARTS)
    cuts = [(start, min(start + step, groups)) for start in range(0, groups, step)]
    return [RowGroups(file, start, end, size * (end - start) // groups) for start, end in cuts]
