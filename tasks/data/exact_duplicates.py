"""Find documents with the same text over all partitions, without having all hashes in memory.

A scanned partition has a sorted table of its documents' hashes. All hashes are divided into equal ranges, and each
range, of all partitions, is sorted separately: of equal documents the first one is kept. A document's place is
`partition << 32 | row`, so that "first" is by partition, then by row, and the result depends only on the documents and
their order.

    keys-00000.npy, keys-00001.npy, …    [3, n] uint64: upper and lower half of the hash, and the row; sorted by hash

Drops are arrays [n, 2] of uint64, (dropped, kept), sorted by the dropped one. On disk they are transposed, so that each
partition reads only its own drops.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from baton.infra.storage.durable import replacement
from baton.tasks.data.rounds import NOTHING, Report

Places = npt.NDArray[np.uint64]

KEYS_IN_MEMORY = 1 << 21  # of a partition being scanned: 350 MB
KEYS_IN_RANGE = 1 << 23  # about; 600 MB to sort

_ROW_BITS = np.uint64(32)


@dataclass
class KeyWriter:
    """Detects documents that were seen before and writes the keys of a partition, in several files if there are
    many. Copies of documents that it no longer remembers are found later, with those of other partitions."""

    folder: Path
    rows: int = 0
    _seen: dict[bytes, int] = field(default_factory=dict)  # the row of each hash
    _files: int = 0

    def is_new(self, document_id: str) -> bool:
        """Return whether the document is no copy of a remembered one; its row is the number of new ones before it."""
        if self._seen.setdefault(bytes.fromhex(document_id[:32]), self.rows) != self.rows:
            return False
        self.rows += 1
        if len(self._seen) >= KEYS_IN_MEMORY:
            self._flush()
        return True

    def close(self) -> None:
        self._flush()

    def _flush(self) -> None:
        keys = np.frombuffer(b"".join(self._seen), ">u8").reshape(-1, 2).astype(np.uint64)
        order = sorted_order(keys[:, 0], keys[:, 1])
        rows = np.fromiter(self._seen.values(), np.uint64, len(self._seen))
        np.save(self.folder / f"keys-{self._files:05}.npy", np.stack([keys[order, 0], keys[order, 1], rows[order]]))
        self._files += 1
        self._seen = {}


@dataclass(frozen=True)
class HashRange:
    """One of several equal ranges of all hashes."""

    number: int
    of: int

    def slice_of(self, sorted_hashes: Places) -> slice:
        low, high = (-(-end * 2**64 // self.of) for end in (self.number, self.number + 1))
        start = np.searchsorted(sorted_hashes, np.uint64(low))
        end = len(sorted_hashes) if high == 2**64 else np.searchsorted(sorted_hashes, np.uint64(high))
        return slice(int(start), int(end))


def hash_ranges(documents: int) -> list[HashRange]:
    """The ranges, each of about `KEYS_IN_RANGE` of the documents, at most."""
    number = max(1, -(-documents // KEYS_IN_RANGE))
    return [HashRange(index, number) for index in range(number)]


def exact_drops(scans: Sequence[Path], hash_range: HashRange) -> Places:
    """The documents of a range that are copies of earlier ones."""
    parts = []
    for number, scan in enumerate(scans):
        for path in sorted(scan.glob("keys-*.npy")):
            keys = np.load(path, mmap_mode="r")
            part = np.array(keys[:, hash_range.slice_of(keys[0])])
            part[2] |= np.uint64(number) << _ROW_BITS
            parts.append(part)
    upper, lower, places = np.concatenate(parts, axis=1)
    del parts
    order = sorted_order(upper, lower)
    upper, lower, places = upper[order], lower[order], places[order]
    same = np.zeros(len(order), bool)
    same[1:] = (upper[1:] == upper[:-1]) & (lower[1:] == lower[:-1])
    firsts = np.maximum.accumulate(np.where(same, 0, np.arange(len(order))))
    return by_dropped(np.stack([places[same], places[firsts[same]]], axis=1))


def sorted_order(upper: Places, lower: Places) -> npt.NDArray[np.intp]:
    """The order that sorts hashes by their halves; equal hashes stay in order. The lower halves are compared only where
    the upper ones are equal, which is faster than `np.lexsort`, especially for parts that are sorted."""
    order = np.argsort(upper, kind="stable")
    equal = np.diff(upper[order]) == 0
    tied = np.flatnonzero(np.append(equal, False) | np.append(False, equal))
    tied_order = order[tied]
    order[tied] = tied_order[np.lexsort((lower[tied_order], upper[tied_order]))]
    return order


@dataclass(frozen=True)
class DropsItem:
    """A part of a round that finds drops, and the file for them."""

    target: Path
    find: Callable[[], Places]


def find_drops(item: DropsItem, report: Report) -> None:
    """Write the drops unless the file exists."""
    if not item.target.exists():
        save_drops(item.target, item.find())
    report(1.0, NOTHING)


def by_dropped(drops: Places) -> Places:
    ordered: Places = np.take(drops, np.lexsort((drops[:, 1], drops[:, 0])), axis=0)
    return ordered


def save_drops(path: Path, drops: Places) -> None:
    """Write sorted drops, completely or not at all."""
    with replacement(path) as partial, partial.open("wb") as stream:
        np.save(stream, np.ascontiguousarray(drops.T))


def drops_of(partition: int, files: Iterable[Path]) -> Places:
    """The drops of one partition as [n, 2] rows, each row once, with the first document that it is dropped for."""
    ends = np.array([partition, partition + 1], np.uint64) << _ROW_BITS
    parts = [np.empty((2, 0), np.uint64)]
    for path in files:
        drops = np.load(path, mmap_mode="r")
        start, end = np.searchsorted(drops[0], ends)
        parts.append(np.array(drops[:, start:end]))
    drops_of_part = by_dropped(np.concatenate(parts, axis=1).T)
    drops_of_part = np.take(drops_of_part, np.unique(drops_of_part[:, 0], return_index=True)[1], axis=0)
    drops_of_part[:, 0] &= np.uint64(2**32 - 1)
    return drops_of_part
