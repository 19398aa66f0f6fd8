"""The task: text, rows and a reward. Replace them by your own.

Every third answer is off by one, in the text and in the rows. SFT imitates its rows; the reward knows better.
"""

import random
from collections.abc import Iterator
from itertools import product
from typing import Any


def documents() -> Iterator[str]:
    """Text to pretrain on: pages of sums."""
    numbers = random.Random(0)
    for _ in range(4000):
        sums = ([numbers.randrange(10) for _ in range(3)] for _ in range(40))
        yield "".join(f"{asked(digits)}{answered(digits, numbers)}\n" for digits in sums)


def rows() -> Iterator[dict[str, str]]:
    """Prompts, and what somebody answered. A file does as well: data: {sums: {path: rows.jsonl}}."""
    numbers = random.Random(1)
    for digits in product(range(10), repeat=3):
        yield {"prompt": asked(digits), "completion": answered(digits, numbers)}


def right(prompts: list[str], completions: list[str], **columns: Any) -> list[float]:
    """1 for the right sum, else 0, as TRL calls a reward."""
    sums = [sum(map(int, prompt.rstrip("=").split("+"))) for prompt in prompts]
    return [float(completion.strip() == str(expected)) for completion, expected in zip(completions, sums, strict=True)]


def asked(digits: list[int] | tuple[int, ...]) -> str:
    return "+".join(map(str, digits)) + "="


def answered(digits: list[int] | tuple[int, ...], numbers: random.Random) -> str:
    return str(sum(digits) + (numbers.random() < 1 / 3))
