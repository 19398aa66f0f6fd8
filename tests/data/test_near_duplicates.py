"""Near duplicates are found across partitions, without false positives."""

import random
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from baton.tasks.data.curate_spec import NearDuplicatesStep
from baton.tasks.data.documents import document
from baton.tasks.data.near_duplicates import NearWriter, bands, near_drops, near_items

STEP = NearDuplicatesStep()
VOCABULARY = [f"word{number}" for number in range(5_000)]


def drops_of(folder: Path, parts: Iterable[list[str]], step: NearDuplicatesStep = STEP) -> dict[int, int]:
    """Return {dropped: kept}, with documents numbered over all partitions."""
    folders, starts, total = [], [], 0
    for number, texts in enumerate(parts):
        folders.append(folder / f"{number}")
        folders[-1].mkdir(parents=True)
        starts.append(total)
        total += len(texts)
        writer = NearWriter(folders[-1], step)
        for row, text in enumerate(texts):
            writer.add(document(f"{number}#{row}", text))
        writer.close()
    items = near_items(folders, step)
    random.shuffle(items)  # the order does not matter
    found: dict[int, int] = {}
    for item in items:
        for pair in near_drops(folders, item, step).tolist():
            dropped, kept = (starts[name >> 32] + (name & 0xFFFFFFFF) for name in pair)
            found[dropped] = min(kept, found.get(dropped, kept))
    return found


def shingles(text: str) -> set[tuple[str, ...]]:
    words = text.split()
    return {tuple(words[at : at + 5]) for at in range(len(words) - 4)}


def jaccard(one: str, other: str) -> float:
    left, right = shingles(one), shingles(other)
    return len(left & right) / len(left | right)


def prose(source: random.Random, words: int) -> list[str]:
    return source.choices(VOCABULARY, k=words)


def edited(source: random.Random, words: list[str], edits: int) -> list[str]:
    changed = list(words)
    for at in source.sample(range(len(words)), edits):
        changed[at] = source.choice(VOCABULARY)
    return changed


def test_planted_pairs(tmp_path: Path) -> None:
    """At least 95 % of pairs with a true similarity of 0.85 or more are found, and at most 1 % of those up to 0.5."""
    source = random.Random(1)
    pairs = []
    for _ in range(2_000):
        words = prose(source, source.randint(60, 400))
        edits = source.randint(0, len(words) // 8)
        pairs.append((" ".join(words), " ".join(edited(source, words, edits))))
    firsts, seconds = zip(*pairs, strict=True)
    found = drops_of(tmp_path, [list(firsts[:900]), list(firsts[900:]), list(seconds)])
    truth = [jaccard(*pair) for pair in pairs]
    hit = [found.get(len(pairs) + number) == number for number in range(len(pairs))]
    similar = [was for was, share in zip(hit, truth, strict=True) if share >= 0.85]
    barely = [was for was, share in zip(hit, truth, strict=True) if 0.85 <= share < 0.9]
    different = [was for was, share in zip(hit, truth, strict=True) if share <= 0.5]
    assert min(len(similar), len(different)) > 250
    assert np.mean(similar) >= 0.95
    assert np.mean(barely) >= 0.93
    assert np.mean(different) <= 0.01
    assert len(found) == sum(hit)  # nothing is found between pairs


def test_the_first_stays(tmp_path: Path) -> None:
    text = " ".join(prose(random.Random(2), 50))
    assert drops_of(tmp_path, [["a b c d e f g", text], [text + " more"], [text, text]]) == {2: 1, 3: 1, 4: 1}


def test_boilerplate_is_not_compared_pair_by_pair(tmp_path: Path) -> None:
    """Ten thousand copies with different first words are in one bucket for most bands."""
    boilerplate = " ".join(prose(random.Random(3), 100))
    texts = [f"{number} {boilerplate}" for number in range(10_000)]
    found = drops_of(tmp_path, [texts[:5_000], texts[5_000:]])
    assert len(found) == 9_999


def test_a_shared_paragraph_is_no_duplicate(tmp_path: Path) -> None:
    """Candidates are verified: a band can be equal although the documents are not similar."""
    source = random.Random(4)
    paragraph = prose(source, 80)
    texts = [" ".join(paragraph + prose(source, 80)) for _ in range(400)]  # 1/3 of the 5-grams are shared
    assert drops_of(tmp_path, [texts]) == {}


@pytest.mark.parametrize("text", ["", "one", "one two", "一二三", "…"])
def test_short_documents_equal_their_copies_alone(tmp_path: Path, text: str) -> None:
    assert drops_of(tmp_path, [["one two three", text], [text, "two one"]]) == {2: 1}


def test_partitions_without_documents(tmp_path: Path) -> None:
    assert drops_of(tmp_path, [[], ["one"], [], ["one", "two"]]) == {1: 0}
    assert drops_of(tmp_path / "none", [[], []]) == {}


@settings(max_examples=15)
@given(st.lists(st.integers(0, 30), max_size=40), st.integers(0, 2**30), st.integers(1, 5))
def test_the_result_does_not_depend_on_partitions(
    tmp_path_factory: pytest.TempPathFactory, picks: list[int], seed: int, size: int
) -> None:
    source = random.Random(seed)
    bases = [prose(source, 60) for _ in range(4)]
    variants = [" ".join(edited(source, base, edits)) for base in bases for edits in (0, 0, 1, 1, 2, 2, 4, 8)]
    texts = [variants[pick] for pick in picks]
    folder = tmp_path_factory.mktemp("near")
    parts = [texts[start : start + size] for start in range(0, len(texts), size)]
    assert drops_of(folder / "one", [texts]) == drops_of(folder / "many", parts)


def test_ranges_hold_what_bands_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = random.Random(5)
    texts = [" ".join(edited(source, prose(random.Random(number // 3), 60), 1)) for number in range(300)]
    whole = drops_of(tmp_path / "one", [texts])
    monkeypatch.setattr("baton.tasks.data.near_duplicates.ENTRIES", 7)
    assert drops_of(tmp_path / "ranges", [texts]) == whole
    assert whole


@pytest.mark.parametrize(("threshold", "number"), [(0.5, 56), (0.7, 28), (0.8, 14), (0.9, 14), (0.95, 7), (1.0, 1)])
def test_bands_find_most_pairs_at_the_threshold(threshold: float, number: int) -> None:
    assert bands(threshold) == number
