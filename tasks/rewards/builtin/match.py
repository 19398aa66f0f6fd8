"""Reward completions that equal the row's answer, ignoring thinking (`<think>…</think>`)."""

from pydantic import Field

from baton.tasks.rewards.builtin.builtin import Comparing


class Match(Comparing):
    """1 for the same text, ignoring leading and trailing white space, otherwise 0."""

    ignore_case: bool = Field(False, description="whether `Yes` equals `yes`")
    ignore_space: bool = Field(False, description="whether all white space equals one blank")

    def worth(self, text: str, answer: str) -> float:
        return float(self._plain(text) == self._plain(answer))

    def _plain(self, text: str) -> str:
        text = " ".join(text.split()) if self.ignore_space else text.strip()
        return text.casefold() if self.ignore_case else text
