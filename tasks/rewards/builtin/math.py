"""Reward completions whose final answer is mathematically equal to the row's: `1/2`, `0.5` and `\\boxed{\\frac12}` are.

Thinking (`<think>…</think>`) is ignored. If the row's answer is one word or letter (`B`, `yes`), the completion's
answer must be the same: in a box, after "answer", alone, or as the only such letter or word of its last line. Otherwise
Hugging Face's math-verify parses and compares the answers; if it cannot parse the row's answer, the reward is None.
"""

import re
from decimal import Decimal
from typing import Any, ClassVar

from baton.tasks.rewards.builtin.builtin import Comparing

TIMEOUT_S = 2  # for each parsing and comparison, since `9^{9^9}` would take forever; an integer, for SIGALRM
ENDING = 500  # characters that are parsed: pages of repetition take math-verify seconds
ALONE = 100  # maximum characters of a bare expression
_WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2,}|\$|\\boxed|\\\(|\\\[")
_SCIENTIFIC = re.compile(r"(?<![\w.\\])\d+(?:\.\d+)?[eE][+-]?\d{1,2}(?![\w.]*\w)")
# Patterns of an answer in words
_STYLE = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mbox|boxed)\s*\{([^{}]*)\}")
_ANSWER = re.compile(r"\b(?:answer|choice|option)\b(?: is| are| would be| must be| should be|:)*[\s:]*", re.IGNORECASE)
_CHOICE = re.compile(r"\(?([A-Z])[).:]")
_LETTERS = re.compile(r"(?<![\w'])(?!A\s+[a-z]|I\b)([A-Z])(?![\w'])")
_OPPOSITES = re.compile(r"\b(?:yes|no|true|false)\b", re.IGNORECASE)


class Math(Comparing):
    """1 for an answer that is mathematically equal, otherwise 0."""

    each_s: ClassVar[float] = 3.0 * TIMEOUT_S

    def worth(self, text: str, answer: str) -> float | None:
        from math_verify import verify

        if word := _word(answer.rpartition("####")[2]):
            same = _same(_given_answer(_ending(text)), word)
            if same or len(word) > 1:
                return float(same)
        gold = _parsed(answer)
        return float(verify(gold, _parsed(_ending(text)), timeout_seconds=TIMEOUT_S)) if gold else None


def _ending(text: str) -> str:
    """Return the part of a completion that has the answer: its last box, or else its end."""
    box = text.rfind("\\boxed")
    return text[box : box + ENDING] if box >= 0 else text[-ENDING:]


def _parsed(text: str) -> list[Any]:
    """Return the last expression in a text. A bare expression, without words around it, needs no `$`."""
    from math_verify import parse

    text = _SCIENTIFIC.sub(lambda number: f"{Decimal(number[0]):f}", text)
    alone = 0 < len(text.strip()) < ALONE and not _WORD.search(text)
    return list(parse(f"${text.strip()}$" if alone else text, parsing_timeout=TIMEOUT_S))


def _word(text: str) -> str:
    """Return the one word or letter that a text consists of, without its style, or "" for any other text."""
    plain = _STYLE.sub(r"\1", _STYLE.sub(r"\1", text)).strip(" \t\r\n.,;:!?*_`'\"$()[]{}")
    return plain if plain.isalpha() else ""


def _same(given: str, word: str) -> bool:
    """Compare two words. The case of a single letter matters, since the letter may be a variable."""
    return given == word if len(word) == 1 else given.casefold() == word.casefold()


def _given_answer(text: str) -> str:
    """Return the word or letter that is given as the answer, or "" if there is none."""
    if text.startswith("\\boxed"):
        inside = _balanced(text.removeprefix("\\boxed").lstrip())
        choice = _CHOICE.match(_STYLE.sub(r"\1", inside).strip(" $~"))
        return _word(inside) or (choice[1] if choice else "")
    *before, text = _ANSWER.split(text)
    if before and (word := _word(text.strip(" *_`$").partition(" ")[0])):
        return word
    lines = [line for line in text.splitlines() if line.strip()]
    last = lines[-1] if lines else ""
    for alone in ({*_LETTERS.findall(last)}, {each.casefold() for each in _OPPOSITES.findall(last)}):
        if len(alone) == 1:
            return str(alone.pop())
    return _word(text)


def _balanced(text: str) -> str:
    """Return the text between the first brace and the brace that closes it."""
    depth = 0
    for at, character in enumerate(text):
        depth += {"{": 1, "}": -1}.get(character, 0)
        if depth == 0:
            return text[1:at]
    return text[1:]
