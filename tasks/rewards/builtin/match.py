"""Reward completions that equal the row's answer, leaving out thinking (`<think>…</think>`)."""

from collections.abc import Sequence
from typing import Any

from pydantic import Field

from tasks.rewards.builtin.builtin import Comparing, final


class Match(Comparing):
    """1 for the same text, ignoring leading and trailing white space, else 0."""

    ignore_case: bool = Field(False, description="whether `Yes` equals `yes`")
    ignore_space: bool = Field(False, description="whether all white space equals one blank")

    def __call__(self, *, completions: Sequence[Any], **columns: Any) -> list[float | None]:
        pairs = zip(completions, self.answers(columns), strict=True)
        return [
            None if answer is None else float(self._plain(final(one)) == self._plain(answer)) for one, answer in pairs
        ]

    def _plain(self, text: str) -> str:
        text = " ".join(text.split()) if self.ignore_space else text.strip()
        return text.casefold() if self.ignore_case else text
