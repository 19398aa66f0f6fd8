"""Reward completions that consist of tagged sections: `<think>…</think><answer>…</answer>` and nothing else."""

import re
from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import Field

from baton.tasks.rewards.builtin.builtin import Builtin
from baton.tasks.rewards.call import text_of

Tag = Annotated[str, Field(pattern=r"^[A-Za-z_][\w.-]*$")]


class Format(Builtin):
    """1 if each tag occurs once, in this order, with only white space in between, otherwise 0."""

    tags: list[Tag] = Field(min_length=1, description="the sections' names, in order, such as [think, answer]")
    open_end: bool = Field(
        False, description="whether text may follow the last section, as an answer follows <think>…</think>"
    )

    def __call__(self, *, completions: Sequence[Any], **columns: Any) -> list[float | None]:
        return [float(self._has(text_of(one))) for one in completions]

    def _has(self, text: str) -> bool:
        marks = [mark for tag in self.tags for mark in (f"<{tag}>", f"</{tag}>")]
        pattern = re.compile("|".join(map(re.escape, dict.fromkeys(marks))))
        if pattern.findall(text) != marks:
            return False
        pieces = pattern.split(text)  # before, inside, between, inside, …, after
        outside = pieces[:-1:2] if self.open_end else pieces[::2]
        return not any(piece.strip() for piece in outside)
