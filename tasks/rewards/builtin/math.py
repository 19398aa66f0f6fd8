"""Whether a completion's last answer equals the row's, as mathematics: `1/2`, `0.5` and `\\boxed{\\frac12}` are one.

Hugging Face's math-verify finds and compares them. An answer that it cannot read makes no reward (None).
"""

import re
from collections.abc import Sequence
from typing import Any

from tasks.rewards.builtin.builtin import Comparing, text_of

LONGEST_S = 2  # for one completion: `9^{9^9}` would take for ever. Whole seconds (math-verify uses SIGALRM)
_WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2,}|\$|\\boxed|\\\(|\\\[")


class Math(Comparing):
    """1 for an answer that is mathematically equal, else 0."""

    def __call__(self, *, completions: Sequence[Any], **columns: Any) -> list[float | None]:
        from math_verify import verify

        rewards: list[float | None] = []
        for completion, answer in zip(completions, self.answers(columns), strict=True):
            gold = _parsed(answer or "")
            given = _parsed(text_of(completion)) if gold else []
            rewards.append(float(verify(gold, given, timeout_seconds=LONGEST_S)) if gold else None)
        return rewards


def _parsed(text: str) -> list[Any]:
    """The last expression in it. One that stands alone, without a word around it, needs no `$`."""
    from math_verify import parse

    alone = text.strip() and not _WORD.search(text)
    return list(parse(f"${text.strip()}$" if alone else text, parsing_timeout=LONGEST_S))
