"""The `.bin/.idx` files that a corpus is tokenized into, its *prefixes*, and the parts in which the work is done.

    held_out                    the held-out split
    train                       the train split, or train-web of each named source
    train-00000, train-00001    successive parts of it, if it is large

Each file of a corpus is from one partition, and neighbouring files make a prefix, so that a large corpus is never
merged. There are at most 200 prefixes, since Megatron's index building slows down with their number and its memory maps
fail past some 590 (Megatron-Bridge #3968). The end and the parts of a prefix depend only on the corpus' files.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from baton.tasks.core.manifest import Manifest
from baton.tasks.data.documents import Split, split_names, stem

T = TypeVar("T")

HELD_OUT: Split = "held_out"
MOST = 200
SMALLEST = 64_000_000  # bytes of Parquet, about 200 MB of text: below, Megatron's sequences at its end count
PARTS = 16  # parts of a file, for as many workers
PART_BYTES = 1 << 19  # size of a part in Parquet, about 1.5 MB of text; a smaller file has fewer parts


@dataclass(frozen=True)
class Prefix:
    """One `.bin/.idx` to make."""

    name: str
    stem: str  # the split, or a named source's part of it
    files: tuple[str, ...]  # names in the corpus


@dataclass(frozen=True)
class FilePart:
    """One of `of` parts of a file, which have about as many row groups each; of a file with few, some have none."""

    file: str  # name in the corpus
    number: int
    of: int
    size: int  # in bytes, about

    def row_groups(self, count: int) -> range:
        """The row groups of the part, of `count` in the file."""
        return range(count * self.number // self.of, count * (self.number + 1) // self.of)


def prefixes(corpus: Manifest) -> list[Prefix]:
    """A corpus' prefixes: the train split's in the order of the sources, then the held-out one."""
    sources: Sequence[str | None] = sorted(corpus.facts.get("sources", {})) or [None]
    trained = {stem("train", name): split_names(corpus.files, "train", name) for name in sources}
    size = sum(corpus.files[name].size for names in trained.values() for name in names)
    target = max(SMALLEST, -(-size // (MOST - 1 - len(sources))))
    prefixes: list[Prefix] = []
    for split_stem, files in trained.items():
        groups = consecutive(files, [corpus.files[name].size for name in files], target)
        names = [f"{split_stem}-{number:05}" for number in range(len(groups))] if len(groups) > 1 else [split_stem]
        prefixes += [Prefix(name, split_stem, group) for name, group in zip(names, groups, strict=True)]
    return [*prefixes, Prefix(HELD_OUT, HELD_OUT, tuple(split_names(corpus.files, HELD_OUT)))]


def consecutive(files: Sequence[T], sizes: Sequence[int], target: int) -> list[tuple[T, ...]]:
    """Group neighbouring files into at least `target` bytes each; all into one group if they have less."""
    groups: list[tuple[T, ...]] = []
    start = size = 0
    for number, more in enumerate(sizes):
        size += more
        if size >= target:
            groups.append(tuple(files[start : number + 1]))
            start, size = number + 1, 0
    rest = tuple(files[start:])
    return [*groups[:-1], (*groups[-1], *rest)] if groups else [rest]


def parts(file: str, size: int) -> list[FilePart]:
    """The parts of a file of this size, each tokenized by one worker at a time. They depend on nothing else, so that a
    pod knows without the file which parts others have made."""
    of = max(1, min(PARTS, size // PART_BYTES))
    return [FilePart(file, number, of, size // of) for number in range(of)]
