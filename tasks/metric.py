"""One figure of an evaluation: how much, how sure, over how many, and whether more is better."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any, Self


@dataclass(frozen=True)
class Metric:
    """What reports, promotion rules and registries need to know of a figure, and nothing about its task."""

    value: float
    standard_error: float | None  # of the value; None where it has none or cannot be known
    count: int  # of the rows, bytes, … that it is the value over
    unit: str = ""  # "bits per byte", "share"; empty for a plain number
    higher_is_better: bool = True

    @classmethod
    def mean(cls, values: Iterable[float | None], unit: str = "", higher_is_better: bool = True) -> Self:
        """Of independent values; None stands for "not applicable" and is left out. Raises ValueError when none is
        left."""
        known = [value for value in values if value is not None]
        if not known:
            raise ValueError("a mean of at least one value; there is none that is not None")
        error = stdev(known) / math.sqrt(len(known)) if len(known) > 1 else None
        return cls(fmean(known), error, len(known), unit, higher_is_better)

    def worth(self) -> float:
        """Orders the values of one metric: the best has most, and what is not a number least."""
        if math.isnan(self.value):
            return -math.inf
        return self.value if self.higher_is_better else -self.value

    def __str__(self) -> str:
        sure = "" if self.standard_error is None else f" ± {self.standard_error:.2g}"
        return f"{self.value:.4g}{sure}{' ' if self.unit else ''}{self.unit}"


def metrics_of(facts: Mapping[str, Any]) -> dict[str, Metric]:
    """An evaluation's metrics by name, of its facts."""
    return {name: Metric(**each) for name, each in facts["metrics"].items()}
