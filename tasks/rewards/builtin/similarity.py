"""How much of the row's answer a completion has, in the same order: Python's own difflib, by words or characters."""

from collections.abc import Sequence
from difflib import SequenceMatcher
from typing import Any, Literal

from pydantic import Field

from tasks.rewards.builtin.builtin import Comparing, text_of


class Similarity(Comparing):
    """2·M/T, where M of the T units of both texts stand in matching runs: 1 for the same text, 0 for nothing alike."""

    unit: Literal["words", "characters"] = Field(
        "words", description="what is compared; characters are slow on long texts"
    )

    def __call__(self, *, completions: Sequence[Any], **columns: Any) -> list[float | None]:
        pairs = zip(completions, self.answers(columns), strict=True)
        return [None if answer is None else self._alike(text_of(one), answer) for one, answer in pairs]

    def _alike(self, text: str, answer: str) -> float:
        words = self.unit == "words"
        first, second = (text.split(), answer.split()) if words else (list(text.strip()), list(answer.strip()))
        return SequenceMatcher(None, first, second, autojunk=False).ratio()
