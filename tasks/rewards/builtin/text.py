"""Rewards that read a completion's text alone, or compare it with the row's answer.

    length      its length is within bounds
    format      it consists of tagged sections: `<think>…</think><answer>…</answer>` and nothing else
    regex       it matches a regular expression; with `column`, whose match is the row's answer
    match       it equals the row's answer
    similarity  it is similar to the row's answer: 2·L/T, where L is the length of the longest common subsequence and T
                the total length of both texts (ROUGE-L's F-measure if words are compared)

`match` and `similarity` leave out thinking (`<think>…</think>`).
"""

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from tasks.rewards.builtin.builtin import EACH_S, Builtin, Comparing, final, time_limit
from tasks.rewards.call import text_of
from tasks.spec import Problem

Tag = Annotated[str, Field(pattern=r"^[A-Za-z_][\w.-]*$")]


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


class Format(Builtin):
    """1 if each tag occurs once, in this order, with only white space in between, else 0."""

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


class Regex(Builtin):
    """1 if the pattern is found and, with `column`, its first group (or whole match) equals the answer, else 0."""

    pattern: str = Field(min_length=1, description="in Python's syntax, used with re.search: `^…$` matches the whole")
    column: str | None = Field(None, description="column with the answer that the last match's first group must equal")
    dot_all: bool = Field(False, description="whether `.` matches newlines too")

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
            self._tell(f"regex: {self.pattern!r} takes more than {EACH_S:g} s on a completion, which is worth 0")
            return []

    def extra_s(self, completions: int, columns: Mapping[str, Sequence[Any]]) -> float:
        return EACH_S * completions


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


class Similarity(Comparing):
    """1 for the same text, 0 for nothing in common."""

    unit: Literal["words", "characters"] = Field("words", description="unit of comparison")

    def __call__(self, *, completions: Sequence[Any], **columns: Any) -> list[float | None]:
        pairs = zip(completions, self.answers(columns), strict=True)
        return [None if answer is None else self._ratio(final(one), answer) for one, answer in pairs]

    def _ratio(self, text: str, answer: str) -> float:
        words = self.unit == "words"
        first, second = (text.split(), answer.split()) if words else (list(text.strip()), list(answer.strip()))
        total = len(first) + len(second)
        return 2 * longest_common(first, second) / total if total else 1.0


def longest_common(first: Sequence[str], second: Sequence[str]) -> int:
    """Length of their longest common subsequence. Computed bit-parallel on integers (H. Hyyrö, "Bit-parallel LCS-length
    computation revisited", 2004), since repetitive completions take difflib minutes."""
    places: dict[str, int] = {}
    for index, unit in enumerate(second):
        places[unit] = places.get(unit, 0) | 1 << index
    mask = row = (1 << len(second)) - 1
    for unit in first:
        common = row & places.get(unit, 0)
        row = (row + common | row - common) & mask
    return len(second) - row.bit_count()
