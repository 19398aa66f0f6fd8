"""Reward similarity to the row's answer, ignoring thinking (`<think>…</think>`).

The reward is 2·L/T, where L is the length of the longest common subsequence and T the total length of both texts; with
words, this is ROUGE-L's F-measure. It is computed bit-parallel on integers (H. Hyyrö, "Bit-parallel LCS-length
computation revisited", 2004), since repetitive completions take difflib minutes.
"""

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from baton.tasks.rewards.builtin.builtin import Comparing


class Similarity(Comparing):
    """1 for the same text, 0 for nothing in common."""

    unit: Literal["words", "characters"] = Field("words", description="unit of comparison")

    def worth(self, text: str, answer: str) -> float:
        words = self.unit == "words"
        first, second = (text.split(), answer.split()) if words else (list(text.strip()), list(answer.strip()))
        total = len(first) + len(second)
        return 2 * longest_common(first, second) / total if total else 1.0


def longest_common(first: Sequence[str], second: Sequence[str]) -> int:
    """Return the length of the longest common subsequence."""
    places: dict[str, int] = {}
    for index, unit in enumerate(second):
        places[unit] = places.get(unit, 0) | 1 << index
    mask = row = (1 << len(second)) - 1
    for unit in first:
        common = row & places.get(unit, 0)
        row = (row + common | row - common) & mask
    return len(second) - row.bit_count()
