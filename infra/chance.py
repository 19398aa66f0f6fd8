"""A test whether the difference of two measured values is more than chance."""

import math
from typing import Literal

SURE = 1.96  # standard errors: 95 % of the differences between equal models are smaller

Finding = Literal["better", "worse", "within noise", "unknown"]


def items_needed(confidence: float) -> int:
    """Return the number of items below which not even a unanimous result reaches that confidence (the sign test)."""
    return math.ceil(math.log2(1 / (1 - confidence)) - 1e-9)


FEWEST = items_needed(0.95)


def missing(standard_error: float | None, items: int, higher_is_better: bool | None) -> str:
    """Return why a change of a metric cannot be judged, or "" if it can."""
    if higher_is_better is None:
        return "whether more is better is not known"
    if standard_error is None:
        return "no standard error"
    return f"fewer than {FEWEST} rows or documents" if items < FEWEST else ""


def judged(change: float, standard_error: float | None, items: int, higher_is_better: bool | None) -> Finding:
    """Judge a change of a metric with its standard error over a number of items (rows, documents). The finding is
    unknown without a standard error or a direction, or with fewer than FEWEST items, whose values may be equal by
    chance."""
    if standard_error is None or missing(standard_error, items, higher_is_better):
        return "unknown"
    if not math.isfinite(change):
        return "worse"
    if abs(change) <= SURE * standard_error:
        return "within noise"
    return "better" if (change > 0) == higher_is_better else "worse"
