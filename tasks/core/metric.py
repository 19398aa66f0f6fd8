"""A metric of an evaluation: value, standard error, sample count and direction."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any, Self

NO_DIRECTION = (
    "a metric of which more is known to be better, or worse: set `higher_is_better: true` or `false` for it in the "
    "metric_list of its lm-eval task, the same in all tasks of a group"
)


@dataclass(frozen=True)
class Metric:
    """A metric as reports, promotion rules and registries use it, independent of its task."""

    value: float
    standard_error: float | None  # None if there is none or it cannot be known
    count: int  # number of rows, bytes, … that it was measured on
    unit: str = ""  # "bits per byte", "share"; empty for a plain number
    higher_is_better: bool | None = True  # None if unknown, as for some lm-eval tasks

    @classmethod
    def mean(cls, values: Iterable[float | None], unit: str = "", higher_is_better: bool = True) -> Self:
        """Return the mean of independent values. None means "not applicable" and is skipped. Raises ValueError if there
        is no other value."""
        known = [value for value in values if value is not None]
        if not known:
            raise ValueError("the mean of no values: all are None")
        error = stdev(known) / math.sqrt(len(known)) if len(known) > 1 else None
        return cls(fmean(known), error, len(known), unit, higher_is_better)

    def worth(self) -> float:
        """Return a sort key for values of one metric, for which the best is largest, and NaN and infinity are
        smallest."""
        if not math.isfinite(self.value):
            return -math.inf
        return self.value if self.higher_is_better else -self.value

    def __str__(self) -> str:
        error = "" if self.standard_error is None else f" ± {self.standard_error:.2g}"
        return f"{self.value:.4g}{error} {self.unit}".rstrip()


def metrics_of(facts: Mapping[str, Any]) -> dict[str, Metric]:
    """Return an evaluation's metrics by name, from its facts."""
    return {name: Metric(**fields) for name, fields in facts["metrics"].items()}
