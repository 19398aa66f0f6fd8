"""Labels of models that are trained with several seeds (`seeds: 3`), and the mean and deviation of a metric.

The first model is labelled `chat`, and its repetitions `chat-seed1`, `chat-seed2`, …
"""

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import TypeVar

from baton.infra.text import measure, plus_minus

T = TypeVar("T")

REPETITION = re.compile(r"-seed\d+$")


def label_of(name: str, repetition: int) -> str:
    """Return the label of a model's repetition; 0 is the first."""
    return f"{name}-seed{repetition}" if repetition else name


def without_seed(label: str) -> str:
    """Return the label that the repetitions of a model share."""
    return REPETITION.sub("", label)


def title_of(stage: str, label: str) -> str:
    """Return the display title of the stage that makes a model: the stage, the label if it differs, and the seed."""
    name = without_seed(label)
    seed = f" seed {label.removeprefix(name).removeprefix('-seed')}" if name != label else ""
    is_stage_name = name == stage or re.fullmatch(rf"{stage}-\d+", name)
    return f"{name if is_stage_name else f'{stage} {name}'}{seed}"


def by_model(runs: Iterable[T], label: Callable[[T], str]) -> dict[str, list[T]]:
    """Return the runs of each model, by its label without the seed."""
    by_label: dict[str, list[T]] = {}
    for run in runs:
        by_label.setdefault(without_seed(label(run)), []).append(run)
    return by_label


@dataclass(frozen=True)
class Spread:
    """A figure's mean and deviation over seeds."""

    mean: float
    deviation: float | None  # sample standard deviation, n − 1 in the denominator; None for one seed

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Return the spread of `values`, at least one, with one value per seed."""
        known = len(values) > 1 and all(map(math.isfinite, values))
        return cls(fmean(values), stdev(values) if known else None)

    def shown(self, unit: str) -> str:
        """Return mean and deviation as text, such as 57.3 % ± 1.0."""
        return plus_minus(measure(self.mean, unit), self.deviation, unit)
