"""Sums of two numbers below 100: text to pretrain on, rows to tune with and to ask, and the reward for a right one."""

import random
from collections.abc import Iterator
from typing import Any

LINES = 40  # of a document


def documents(count: int = 6000, seed: int = 0) -> Iterator[str]:
    """Pages of sums, every third line wrong: what is read is no more reliable than text of the web."""
    numbers = random.Random(seed)
    for _ in range(count):
        lines = []
        for _ in range(LINES):
            one, other = numbers.randrange(100), numbers.randrange(100)
            answer = one + other if numbers.random() < 2 / 3 else numbers.randrange(200)
            lines.append(f"{one}+{other}={answer}\n")
        yield "".join(lines)


def rows(count: int = 4000, seed: int = 1) -> Iterator[dict[str, str]]:
    """A sum, and its answer."""
    numbers = random.Random(seed)
    for _ in range(count):
        one, other = numbers.randrange(100), numbers.randrange(100)
        yield {"prompt": f"{one}+{other}=", "completion": str(one + other)}


def right(completions: list[str], completion: list[str], **_: Any) -> list[float]:
    """Whether the answer is the sum, and nothing else."""
    return [float(said.strip() == wanted) for said, wanted in zip(completions, completion, strict=True)]
