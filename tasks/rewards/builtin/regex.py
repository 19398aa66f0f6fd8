"""Whether a regular expression is found in a completion; with `column`, whether what it finds is the row's answer."""

import re
from collections.abc import Sequence
from typing import Any

from pydantic import Field

from tasks.rewards.builtin.builtin import Builtin
from tasks.rewards.call import text_of
from tasks.spec import Problem


class Regex(Builtin):
    """1 when the pattern is found, and its first group (or all of it) is the answer where one is asked for, else 0."""

    pattern: str = Field(min_length=1, description="in Python's syntax; searched for, so `^…$` for the whole")
    column: str | None = Field(None, description="of the rows: the answer that the last match's first group must equal")
    dot_all: bool = Field(False, description="`.` stands for a line's end too")

    def compares(self) -> bool:
        return self.column is not None

    def wants(self) -> list[tuple[str, ...]]:
        return [(self.column,)] if self.column else []

    def problems(self) -> list[Problem]:
        try:
            re.compile(self.pattern)
        except (re.error, OverflowError, RecursionError) as error:
            return [Problem("pattern", self.pattern, f"a regular expression in Python's syntax: {error}")]
        return []

    def __call__(self, *, completions: Sequence[Any], **columns: Any) -> list[float | None]:
        wanted = re.compile(self.pattern, re.DOTALL if self.dot_all else 0)
        found = [list(wanted.finditer(text_of(one)))[-1:] for one in completions]
        if self.column is None:
            return [float(bool(matches)) for matches in found]
        answers = [None if value is None else text_of(value).strip() for value in columns[self.column]]
        texts = [
            (one.group(1 if wanted.groups else 0) or "").strip() if (one := next(iter(each), None)) else None
            for each in found
        ]
        return [None if answer is None else float(text == answer) for text, answer in zip(texts, answers, strict=True)]
