"""An environment for a tiny model."""

import random
from typing import Any


class Dice:
    """A die that shows how often it was rolled. The docstring of `roll` is in the schema that the model was taught."""

    def reset(self, **columns: Any) -> None:
        self.shown: list[int] = []

    def roll(self) -> int:
        """Roll."""
        self.shown.append(random.randint(1, 6))
        return self.shown[-1]

    def get_reward(self) -> float:
        return min(len(self.shown), 2) / 2


def even(completions: list[Any], environments: list[Any], **columns: Any) -> list[float]:
    return [
        float(sum(dice.shown) % 2 == 0 and len(turns) > 1)
        for dice, turns in zip(environments, completions, strict=True)
    ]
