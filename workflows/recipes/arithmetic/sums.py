"""Sums of three digits: text to pretrain on, rows to tune with and to ask, and the reward for a right answer.

Every third answer is off by one or two, in the text and in the rows alike: what people write is not all true. So SFT,
which imitates its rows, comes to two thirds at most, however long it takes; the reward knows better.
"""

import random
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

LINES = 40  # of a document


def documents(count: int = 6000) -> Iterator[str]:
    """Pages of sums."""
    numbers = random.Random(0)
    for _ in range(count):
        sums = ([numbers.randrange(10) for _ in range(3)] for _ in range(LINES))
        yield "".join(f"{asked(digits)}{answered(digits, numbers)}\n" for digits in sums)


def rows() -> Iterator[dict[str, str]]:
    """Each sum once, and what somebody answered."""
    numbers = random.Random(1)
    for digits in product(range(10), repeat=3):
        yield {"prompt": asked(digits), "completion": answered(digits, numbers)}


def right(prompts: list[str], completions: list[str], **_: Any) -> list[float]:
    """Whether the completion is the sum, and nothing else; computed from the prompt, since the rows' own answers have
    mistakes."""
    sums = [sum(map(int, prompt.rstrip("=").split("+"))) for prompt in prompts]
    return [float(completion.strip() == str(expected)) for completion, expected in zip(completions, sums, strict=True)]


def asked(digits: Sequence[int]) -> str:
    return "+".join(map(str, digits)) + "="


def answered(digits: Sequence[int], numbers: random.Random) -> str:
    """The sum, or every third time a slip."""
    slip = numbers.choice((-2, -1, 1, 2)) if numbers.random() < 1 / 3 else 0
    return str(abs(sum(digits) + slip))
