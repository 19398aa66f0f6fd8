"""Reward completions whose length is within bounds."""

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import Field

from baton.tasks.core.spec import Problem
from baton.tasks.rewards.builtin.builtin import Builtin
from baton.tasks.rewards.call import text_of


class Length(Builtin):
    """1 from `at_least` to `at_most`, falling to 0 over `margin` on either side."""

    at_least: int = Field(0, ge=0, description="shortest length with the full reward, in `unit`")
    at_most: int | None = Field(None, ge=0, description="longest length with the full reward, in `unit`")
    margin: int = Field(0, ge=0, description="range over which the reward falls from 1 to 0, in `unit`")
    unit: Literal["characters", "words", "tokens"] = Field("characters", description="unit of the length")

    def problems(self) -> list[Problem]:
        if self.at_most is not None and self.at_most < self.at_least:
            return [Problem("at_most", self.at_most, f"at least at_least ({self.at_least})")]
        if self.at_most is None and self.at_least == 0:
            return [Problem("at_most", None, "set at_least, at_most or both: without them every length is right")]
        return []

    def wants(self) -> list[tuple[str, ...]]:
        return [("completion_ids",)] if self.unit == "tokens" else []

    def __call__(self, *, completions: Sequence[Any], **columns: Any) -> list[float | None]:
        if self.unit == "tokens":
            return [self._reward(len(ids)) for ids in columns["completion_ids"]]
        texts = map(text_of, completions)
        return [self._reward(len(text.split() if self.unit == "words" else text)) for text in texts]

    def _reward(self, length: int) -> float:
        most = length if self.at_most is None else self.at_most
        beyond = max(self.at_least - length, length - most, 0)
        return max(0.0, 1 - beyond / (self.margin + 1))
