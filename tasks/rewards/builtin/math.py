"""Whether a completion's last answer equals the row's, as mathematics: `1/2`, `0.5` and `\\boxed{\\frac12}` are one.

Hugging Face's math-verify finds and compares them. An answer that it cannot read makes no reward (None).
"""

import re
from collections.abc import Sequence
from typing import Any

from tasks.rewards.builtin.builtin import Comparing
from tasks.rewards.call import text_of

LONGEST_S = 2  # for one completion: `9^{9^9}` would take for ever. Whole seconds (math-verify uses SIGALRM)
ENDING = 500  # characters that are read: what repeats itself for pages takes math-verify seconds
ALONE = 100  # characters of an expression that stands alone, at most
_WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2,}|\$|\\boxed|\\\(|\\\[")


class Math(Comparing):
    """1 for an answer that is mathematically equal, else 0."""

    def __call__(self, *, completions: Sequence[Any], **columns: Any) -> list[float | None]:
        from math_verify import verify

        rewards: list[float | None] = []
        for completion, answer in zip(completions, self.answers(columns), strict=True):
            gold = _parsed(answer or "")
            given = _parsed(_ending(text_of(completion))) if gold else []
            rewards.append(float(verify(gold, given, timeout_seconds=LONGEST_S)) if gold else None)
        return rewards


def _ending(text: str) -> str:
    """Where a completion's answer stands: in its last box, else at its end."""
    box = text.rfind("\\boxed")
    return text[box : box + ENDING] if box >= 0 else text[-ENDING:]


def _parsed(text: str) -> list[Any]:
    """The last expression in it. One that stands alone, without a word around it, needs no `$`."""
    from math_verify import parse

    alone = 0 < len(text.strip()) < ALONE and not _WORD.search(text)
    return list(parse(f"${text.strip()}$" if alone else text, parsing_timeout=LONGEST_S))
