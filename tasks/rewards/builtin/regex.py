"""Reward completions that match a regular expression, or, with `column`, whose match is the row's answer."""

import re
from collections.abc import Sequence
from typing import Any, ClassVar

from pydantic import Field

from baton.tasks.core.spec import Problem
from baton.tasks.rewards.builtin.builtin import EACH_S, Builtin, time_limit
from baton.tasks.rewards.call import text_of


class Regex(Builtin):
    """1 if the pattern is found and, with `column`, its first group (or its match) equals the answer, otherwise 0."""

    each_s: ClassVar[float] = EACH_S

    pattern: str = Field(min_length=1, description="in Python's syntax, used with re.search; `^…$` matches all text")
    column: str | None = Field(None, description="column with the answer that the last match's first group must equal")
    dot_all: bool = Field(False, description="whether `.` matches newlines too")

    def compares(self) -> bool:
        return self.column is not None

    def problems(self) -> list[Problem]:
        try:
            re.compile(self.pattern)
        except (re.error, OverflowError, RecursionError) as error:
            return [Problem("pattern", self.pattern, f"a regular expression in Python's syntax: {error}")]
        return []

    def __call__(self, *, completions: Sequence[Any], **columns: Any) -> list[float | None]:
        pattern = re.compile(self.pattern, re.DOTALL if self.dot_all else 0)
        matches = [self._last(pattern, text_of(one)) for one in completions]
        if self.column is None:
            return [float(bool(last)) for last in matches]
        answers = [None if value is None else text_of(value).strip() for value in columns[self.column]]
        texts = [(last[0].group(1 if pattern.groups else 0) or "").strip() if last else None for last in matches]
        return [None if answer is None else float(text == answer) for text, answer in zip(texts, answers, strict=True)]

    def _last(self, pattern: re.Pattern[str], text: str) -> list[re.Match[str]]:
        try:
            with time_limit(EACH_S):
                return list(pattern.finditer(text))[-1:]
        except TimeoutError:
            self._report_once(f"regex: {self.pattern!r} takes more than {EACH_S:g} s on a completion, which is worth 0")
            return []
