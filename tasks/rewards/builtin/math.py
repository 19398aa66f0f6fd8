"""Reward completions whose last answer is mathematically equal to the row's: `1/2`, `0.5` and `\\boxed{\\frac12}` are.

Hugging Face's math-verify parses and compares them. If it cannot parse the row's answer, the reward is None.
"""

import re
from collections.abc import Sequence
from typing import Any

from tasks.rewards.builtin.builtin import Comparing
from tasks.rewards.call import text_of

TIMEOUT_S = 2  # per completion: `9^{9^9}` would take forever. Whole seconds (math-verify uses SIGALRM)
ENDING = 500  # characters that are parsed: pages of repetition take math-verify seconds
ALONE = 100  # maximum characters of a bare expression
_WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2,}|\$|\\boxed|\\\(|\\\[")


class Math(Comparing):
    """1 for an answer that is mathematically equal, else 0."""

    def __call__(self, *, completions: Sequence[Any], **columns: Any) -> list[float | None]:
        from math_verify import verify

        rewards: list[float | None] = []
        for completion, answer in zip(completions, self.answers(columns), strict=True):
            gold = _parsed(answer or "")
            parsed = _parsed(_ending(text_of(completion))) if gold else []
            rewards.append(float(verify(gold, parsed, timeout_seconds=TIMEOUT_S)) if gold else None)
        return rewards


def _ending(text: str) -> str:
    """The part of a completion that has the answer: its last box, else its end."""
    box = text.rfind("\\boxed")
    return text[box : box + ENDING] if box >= 0 else text[-ENDING:]


def _parsed(text: str) -> list[Any]:
    """The last expression in a text. A bare expression, without words around it, needs no `$`."""
    from math_verify import parse

    alone = 0 < len(text.strip()) < ALONE and not _WORD.search(text)
    return list(parse(f"${text.strip()}$" if alone else text, parsing_timeout=TIMEOUT_S))
