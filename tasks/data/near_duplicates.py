"""Near duplicates by MinHash, over partitions, in bounded memory.

    writer = NearWriter(folder, step)           # in the scan of a partition: for each kept document, in its order
    writer.add(document); writer.close()
    items = near_items(folders, step)           # then, with the folders of all partitions, in their order
    drops = near_drops(folders, item, step)     # of each item, in any order and any process; for an increment,
                                                # with bool arrays of the rows that earlier corpora have

A document is `partition << 32 | row`: the index of its folder in `folders`, and the number of documents that were added
to that folder before it. `near_drops` returns rows (dropped, kept), sorted, each dropped document once; another item
may drop it too. A document is dropped if it is similar to an earlier one, so that the first of a cluster always stays;
known ones come before all others. The union over all items depends only on the documents and their order.

Similarity is that of the documents' sets of 5-grams of words (Jaccard). It is estimated by 112 minima of random
permutations (Broder, "On the resemblance and containment of documents", 1997; by rensa), whose bands of equal values
give candidates (Leskovec, Rajaraman, Ullman, "Mining of Massive Datasets", chapter 3). A document is compared with the
first one in its bucket and with the one before it, since boilerplate has too many pairs to compare all. A shared bucket
only makes a candidate: each pair is verified by its complete signatures, and passes from one standard error below the
threshold on, so that at a threshold of 0.8 a pair at 0.85 is found with a probability of 98 %, and one at 0.5
practically never.

A folder holds, without headers, for n documents and b bands:

    signatures.u32    [n, 112]  uint32
    hashes.u64        [b, n]    uint64, sorted within a band: hashes of the band's part of the signatures
    rows.u32          [b, n]    uint32: their documents

An item needs about 80 bytes of memory for each of its entries, at most some 4 million unless more share one bucket, and
a document 616 bytes of disk with 14 bands.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt
from rensa import RMinHash

from baton.tasks.data.curate_spec import NearDuplicatesStep
from baton.tasks.data.documents import Document
from baton.tasks.data.ngrams import Hashes, ngrams, word_hashes

PERMUTATIONS = 112
SHINGLE = 5  # words
SEED = 1
FOUND = 0.9  # smallest share of the pairs at the threshold that have a band in common
BATCH_WORDS = 1 << 17  # signed at a time
BATCH_DOCUMENTS = 1 << 12
ENTRIES = 1 << 22  # approximate number for an item
PAIRS = 1 << 16  # compared at a time: 58 MB of signatures
NEW = np.uint64(1 << 63)  # set in the number of a document that is not known, while documents are sorted

Signatures = npt.NDArray[np.uint32]
Number = TypeVar("Number", np.uint32, np.uint64)


@cache
def bands(threshold: float) -> int:
    """The number of bands of the signatures: the fewest by which most pairs at the threshold are found."""
    for number in (divisor for divisor in range(1, PERMUTATIONS + 1) if PERMUTATIONS % divisor == 0):
        if 1 - (1 - threshold ** (PERMUTATIONS // number)) ** number >= FOUND:
            return number
    return PERMUTATIONS


def least_equal(threshold: float) -> int:
    """The number of equal values that two signatures need: the threshold less one standard error of the estimate."""
    return math.ceil(PERMUTATIONS * threshold - math.sqrt(PERMUTATIONS * threshold * (1 - threshold)) - 1e-9)


class NearWriter:
    """Writes the signatures and bands of a partition. The folder must exist; it is complete after `close`."""

    def __init__(self, folder: Path, step: NearDuplicatesStep) -> None:
        self._folder = folder
        self._bands = bands(step.threshold)
        self._file = (folder / "signatures.u32").open("wb")
        self._documents: list[Hashes] = []  # their words
        self._words = 0

    def add(self, item: Document) -> None:
        words = word_hashes(item.text)
        self._documents.append(words)
        self._words += len(words)
        if self._words >= BATCH_WORDS or len(self._documents) >= BATCH_DOCUMENTS:
            self._flush()

    def close(self) -> None:
        self._flush()
        self._file.close()
        signatures = _signatures(self._folder)
        width = PERMUTATIONS // self._bands
        with (self._folder / "hashes.u64").open("wb") as hashes, (self._folder / "rows.u32").open("wb") as rows:
            for band in range(self._bands):
                of_band = _mixed(signatures[:, band * width : (band + 1) * width])
                order = np.argsort(of_band, kind="stable")
                of_band[order].tofile(hashes)
                order.astype(np.uint32).tofile(rows)

    def _flush(self) -> None:
        if self._documents:
            signed(self._documents).tofile(self._file)
        self._documents, self._words = [], 0


def signed(documents: list[Hashes]) -> Signatures:
    """The signatures [n, 112] of n documents, each given by the hashes of its words."""
    # fewer words than an n-gram has are one n-gram
    padded = [words if len(words) >= SHINGLE else np.pad(words, (0, SHINGLE - len(words))) for words in documents]
    ends = np.cumsum([len(words) for words in padded])
    shingles = ngrams(np.concatenate(padded), SHINGLE)
    inside = np.ones(len(shingles), bool)
    inside[(ends[:-1, None] - np.arange(1, SHINGLE)).ravel()] = False  # n-grams across two documents
    offsets = np.insert(ends - (SHINGLE - 1) * np.arange(1, len(ends) + 1), 0, 0).astype(np.uint64)
    shingles = _finalized(shingles[inside])
    rows = RMinHash.digest_matrix_from_flat_token_hashes(shingles, offsets, PERMUTATIONS, SEED).to_rows()
    return np.array(rows, np.uint32)


@dataclass(frozen=True)
class NearItem:
    """The buckets of a band whose hashes are in one of several equal ranges of all hashes."""

    band: int
    range: int
    ranges: int


def near_items(parts: list[Path], step: NearDuplicatesStep) -> list[NearItem]:
    """The items, which can be worked on independently."""
    documents = sum(len(_signatures(part)) for part in parts)
    ranges = max(1, math.ceil(documents / ENTRIES))
    return [NearItem(band, number, ranges) for band in range(bands(step.threshold)) for number in range(ranges)]


def near_drops(
    parts: list[Path], item: NearItem, step: NearDuplicatesStep, known: Sequence[Path] | None = None
) -> Hashes:
    """Documents (dropped, kept), [n, 2], sorted by the dropped one. `known`: a file for each part with a bool array
    [n] in its first row."""
    hashes, documents = _entries(parts, item, bands(step.threshold))
    if known:
        documents = _known_first(documents, known)
    order = np.lexsort((documents, hashes))
    hashes, documents = hashes[order], documents[order]
    starts = _starts(hashes)
    shared = ~starts  # a bucket of one document has no candidates
    shared[:-1] |= ~starts[1:]
    hashes, documents = hashes[shared], documents[shared]
    signatures = [_signatures(part) for part in parts]
    copies, distinct = _equal(hashes, documents, signatures)
    similar = _similar(hashes[distinct], documents[distinct], signatures, least_equal(step.threshold))
    drops = np.concatenate([copies, similar]) & ~NEW
    drops = drops[np.lexsort((drops[:, 1], drops[:, 0]))]
    once: Hashes = drops[np.unique(drops[:, 0], return_index=True)[1]]  # with the first document that it is similar to
    return once


def _entries(parts: list[Path], item: NearItem, number: int) -> tuple[Hashes, Hashes]:
    """The hashes and documents of an item, from the sorted band of each partition."""
    low, high = ((item.range + end) * 2**64 // item.ranges for end in (0, 1))
    hashes, documents = [np.empty(0, np.uint64)], [np.empty(0, np.uint64)]
    for index, part in enumerate(parts):
        of_part = _mapped(part / "hashes.u64", np.uint64).reshape(number, -1)[item.band]
        start = np.searchsorted(of_part, np.uint64(low))
        end = len(of_part) if high == 2**64 else np.searchsorted(of_part, np.uint64(high))
        rows = _mapped(part / "rows.u32", np.uint32).reshape(number, -1)[item.band]
        hashes.append(of_part[start:end])
        documents.append(rows[start:end].astype(np.uint64) | np.uint64(index << 32))
    return np.concatenate(hashes), np.concatenate(documents)


def _known_first(documents: Hashes, known: Sequence[Path]) -> Hashes:
    """The documents, with NEW in the numbers of those that are not known."""
    numbers = documents.copy()
    parts = documents >> np.uint64(32)
    for part in np.unique(parts):
        chosen = parts == part
        of_part = np.load(known[int(part)], mmap_mode="r")[0]
        numbers[chosen] |= np.where(of_part[documents[chosen] & np.uint64(2**32 - 1)], np.uint64(0), NEW)
    return numbers


def _equal(hashes: Hashes, documents: Hashes, signatures: list[Signatures]) -> tuple[Hashes, npt.NDArray[np.intp]]:
    """Pairs of documents whose signatures are equal, and the places of the first document with each signature. So
    copies of a document are no candidates for others."""
    digests = np.empty_like(hashes)
    for start in range(0, len(documents), PAIRS):
        part = slice(start, start + PAIRS)
        digests[part] = _mixed(_signatures_of(documents[part], signatures))
    order = np.lexsort((documents, digests, hashes))
    first = _starts(hashes[order]) | _starts(digests[order])
    firsts = documents[order][np.maximum.accumulate(np.where(first, np.arange(len(order)), 0))]
    pairs = np.stack([documents[order], firsts], axis=1)[~first]
    return pairs, np.sort(order[first])


def _similar(hashes: Hashes, documents: Hashes, signatures: list[Signatures], least: int) -> Hashes:
    """Pairs of a document and the first one or the previous one in its bucket, with at least `least` equal values.
    `hashes` and `documents` are sorted by bucket."""
    places = np.arange(len(hashes))
    starts = _starts(hashes)
    firsts = np.maximum.accumulate(np.where(starts, places, 0))
    later = places[~starts]
    not_second = later[later - 1 != firsts[later]]
    candidates = np.concatenate(
        [np.stack([later, firsts[later]], axis=1), np.stack([not_second, not_second - 1], axis=1)]
    )
    pairs = documents[candidates]
    near = [np.empty((0, 2), np.uint64)]
    for start in range(0, len(pairs), PAIRS):
        part = pairs[start : start + PAIRS]
        equal = (_signatures_of(part[:, 0], signatures) == _signatures_of(part[:, 1], signatures)).sum(axis=1)
        near.append(part[equal >= least])
    return np.concatenate(near)


def _starts(values: Hashes) -> npt.NDArray[np.bool_]:
    """A mask of the places where a run of equal values starts."""
    starts = np.ones(len(values), bool)
    starts[1:] = values[1:] != values[:-1]
    return starts


def _signatures_of(documents: Hashes, signatures: list[Signatures]) -> Signatures:
    """The documents' signatures, [n, 112]."""
    chosen_signatures = np.empty((len(documents), PERMUTATIONS), np.uint32)
    parts = (documents & ~NEW) >> np.uint64(32)
    rows = documents & np.uint64(2**32 - 1)
    for part in np.unique(parts):
        chosen = parts == part
        chosen_signatures[chosen] = signatures[part][rows[chosen]]
    return chosen_signatures


def _signatures(folder: Path) -> Signatures:
    return _mapped(folder / "signatures.u32", np.uint32).reshape(-1, PERMUTATIONS)


def _mapped(path: Path, kind: type[Number]) -> npt.NDArray[Number]:
    return np.memmap(path, kind, "r") if path.stat().st_size else np.empty(0, kind)  # an empty file cannot be mapped


def _mixed(values: Signatures) -> Hashes:
    """A hash of each row of values."""
    hashes = np.zeros(len(values), np.uint64)
    for column in values.T:
        hashes = _finalized(hashes ^ column)
    return hashes


def _finalized(hashes: Hashes) -> Hashes:
    """The last steps of SplitMix64, by which similar numbers get unrelated hashes."""
    hashes = hashes + np.uint64(0x9E3779B97F4A7C15)
    hashes = (hashes ^ (hashes >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    hashes = (hashes ^ (hashes >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return hashes ^ (hashes >> np.uint64(31))
