"""Names and ids of known corpora in blocks, so that a night does not read every earlier corpus.

    <key>.names/names.parquet    the statements of successive corpora about names (compare.py), without texts

A block has 1, 2, 4, … corpora, by the binary digits of their number: 11 known corpora are in the blocks [0, 8), [8, 10)
and [10, 11). Its key is a digest of its corpora's digests, so that a found block has exactly these corpora. A block is
made from its two halves, down to the corpora themselves, and is kept beyond its job, for later nights:

    HOME/partitions    on this machine (partition_cache.py)
    STORAGE/known      for pods (stored_folders.py)

So a night reads one block for each binary digit and the newest corpus, and a name is written once each time that the
number of nights doubles. Blocks may be deleted at any time: they can be made from the corpora.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from baton.tasks.core.job import Input, Job
from baton.tasks.core.manifest import json_key
from baton.tasks.data.compare import Known
from baton.tasks.data.partition_cache import FolderCache, disk_cache, is_intact, make_once
from baton.tasks.data.stored_folders import StoredFolders

NAMES_VERSION = 2  # raise it when the same corpora would have another block


def names_cache(job: Job) -> FolderCache:
    return StoredFolders(f"{job.storage}/known") if job.storage else disk_cache()


@dataclass
class KnownBlocks:
    """Adds corpora to `known`, by blocks. `folder` has the blocks of this night."""

    known: Known
    folder: Path
    cache: FolderCache
    show: Callable[[int], None]  # called with the number of corpora that are known
    corpora_read: int = 0  # number of corpora that were read themselves
    _done: int = field(default=0, init=False)

    def add(self, corpora: Sequence[Input]) -> None:
        """Add all corpora, oldest first, and cache those of their blocks that are missing. Raises ArtifactError,
        StorageError."""
        for start, end in blocks(len(corpora)):
            block = corpora[start:end]
            if not make_once(self._place(block), "names", self.cache, partial(self._make, block, first=not start)):
                self._read(block)
        if self.corpora_read > 1:
            print(f"known text: read from {self.corpora_read:,} corpora; no cached block has their names", flush=True)

    def _make(self, block: Sequence[Input], folder: Path, *, first: bool) -> dict[str, Any]:
        """Add the corpora of a block, and write it. The `first` block alone shows which of its names still count."""
        since = self.known.time
        self._add_parts(block)
        if first:
            self.known.forget()
        return self.known.write(folder, since)

    def _add_parts(self, block: Sequence[Input]) -> None:
        """Add the corpora of a block that is not cached."""
        if len(block) == 1:
            self.known.add(block[0].local(), block[0].digest)
            self.corpora_read += 1
            self._added(1)
            return
        middle = len(block) // 2
        for half in (block[:middle], block[middle:]):
            if is_intact(place := self._place(half)) or self.cache.load(place):
                self._read(half)
            else:
                self._add_parts(half)

    def _read(self, block: Sequence[Input]) -> None:
        self.known.read(self._place(block))
        self._added(len(block))

    def _added(self, number: int) -> None:
        self._done += number
        self.show(self._done)

    def _place(self, block: Sequence[Input]) -> Path:
        return self.folder / f"{json_key([NAMES_VERSION, [corpus.digest for corpus in block]])}.names"


def blocks(number: int) -> list[tuple[int, int]]:
    """The blocks of this number of corpora, the longest first: (first corpus, last corpus + 1) of each."""
    spans, start = list[tuple[int, int]](), 0
    for digit in reversed(range(number.bit_length())):
        if number >> digit & 1:
            spans.append((start, start + (1 << digit)))
            start += 1 << digit
    return spans
