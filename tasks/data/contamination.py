"""Find texts of an evaluation in documents by 13 consecutive words, as for GPT-3 (Brown et al., "Language Models are
Few-Shot Learners", 2020, appendix C).

    digest = write_index(folder, items, size)    # once, before documents are read
    known = Contamination(folder)                # in each process; the index is mapped, not read
    known.find(text)                             # "sums, row 12", or None

An item is a row of a set, or of a file; it has several texts, such as a question and its answers. A text is found by
any 13 of its words in a row. A text of 8 to 12 words is found only if it occurs in full; shorter ones are not searched
for, since they would be found everywhere, but are counted. N-grams in more than 10 different texts, such as an
instruction that all prompts begin with, are left out unless the text has no other.

    ngrams-13.u64 …    sorted hashes, one file for each length
    items-13.u32 …     the first item with each hash
    names.txt          the names of the items, one per line
    about.json         the number of items, and of those that are not searched for, or only in part
"""

from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt
from blake3 import blake3
from pydantic import BaseModel

from baton.tasks.data.ngrams import Hashes, ngrams, word_hashes

Number = TypeVar("Number", np.uint32, np.uint64)

SHORTEST = 8  # words of the shortest text that is searched for
COMMON = 10  # an n-gram in more texts than this is left out


class About(BaseModel):
    """The facts of an index."""

    items: int = 0
    too_short: int = 0  # items without a text that is searched for
    common: int = 0  # items with a text of which less than half is searched for
    first_common: str = ""  # the name of the first of them
    digest: str = ""  # digest of the hashes and names


def write_index(folder: Path, items: Iterable[tuple[str, list[str]]], size: int) -> About:
    """Write an index of items, each with a name and its texts. Needs about 100 bytes of memory for each word."""
    about, names = About(), []
    by_length: dict[int, list[tuple[int, Hashes]]] = {}  # length -> (item, the n-grams of one text)
    seen: set[bytes] = set()
    for number, (name, texts) in enumerate(items):
        names.append(" ".join(name.split()))
        lengths = []
        for text in texts:
            words = word_hashes(text)
            length = min(len(words), size)
            lengths.append(length)
            if length >= min(SHORTEST, size) and (key := words.tobytes()) not in seen:
                seen.add(key)
                by_length.setdefault(length, []).append((number, np.unique(ngrams(words, length))))
        about.items += 1
        about.too_short += max(lengths, default=0) < min(SHORTEST, size)
    digest, shared = blake3("\n".join(names).encode()), set[int]()
    for length, texts_of in sorted(by_length.items()):
        hashes, owners, cut = _without_common(texts_of)
        shared |= cut
        hashes.tofile(folder / f"ngrams-{length}.u64")
        owners.tofile(folder / f"items-{length}.u32")
        digest.update(f"\0{length}".encode() + hashes.tobytes() + owners.tobytes())
    about.digest = digest.hexdigest()
    about.common, about.first_common = len(shared), names[min(shared)] if shared else ""
    (folder / "names.txt").write_text("\n".join(names))
    (folder / "about.json").write_text(about.model_dump_json())
    return about


def _without_common(texts: list[tuple[int, Hashes]]) -> tuple[Hashes, npt.NDArray[np.uint32], set[int]]:
    """The n-grams of all texts, sorted, with the first item that has each; and the items with a text of which more than
    half is left out."""
    hashes, numbers = np.unique(np.concatenate([part for _, part in texts]), return_counts=True)
    common = hashes[numbers > COMMON]
    parts, cut = [], set[int]()
    for item, part in texts:
        rare = part[~np.isin(part, common)]
        parts.append(rare if len(rare) else part)
        if 2 * len(parts[-1]) < len(part):
            cut.add(item)
    owners = np.repeat(np.array([item for item, _ in texts], np.uint32), [len(part) for part in parts])
    unique, first = np.unique(np.concatenate(parts), return_index=True)
    return unique, owners[first], cut


class Contamination:
    """An index that was written."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._tables = [
            (int(path.stem.partition("-")[2]), _mapped(path, np.uint64), folder / f"items-{path.stem[7:]}.u32")
            for path in sorted(folder.glob("ngrams-*.u64"))
        ]

    @cached_property
    def _names(self) -> list[str]:
        return (self._folder / "names.txt").read_text().split("\n")

    def find(self, text: str) -> str | None:
        """The name of the first item of which the text has a part, if any."""
        words = word_hashes(text)
        items = [item for item in (self._first(words, *table) for table in self._tables) if item is not None]
        return self._names[min(items)] if items else None

    def _first(self, words: Hashes, length: int, known: Hashes, owners: Path) -> int | None:
        hashes = ngrams(words, length)
        places = np.minimum(np.searchsorted(known, hashes), len(known) - 1)
        hits = places[known[places] == hashes]
        return int(_mapped(owners, np.uint32)[hits].min()) if len(hits) else None


def _mapped(path: Path, kind: type[Number]) -> npt.NDArray[Number]:
    return np.memmap(path, kind, "r")
