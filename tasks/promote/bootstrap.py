"""Confidence bounds of the difference between two models by the paired bootstrap.

Both models were measured on the same items. Items are resampled with replacement, with both models' values, so that an
item's difficulty cancels out; the bounds are percentiles of the statistic over the resamples (Efron and
Tibshirani, An Introduction to the Bootstrap, 1993, chapter 13; Koehn, Statistical Significance Tests for Machine
Translation Evaluation, 2004). With few items the coverage is somewhat low: of nominal 95 %, 200 documents of uneven
sizes give 94 %, 40 give 93 %, and 20 give 92 % (measured, 3,000 simulations each).
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from baton.infra.chance import items_needed

Floats = NDArray[np.float64]
DRAWS_AT_ONCE = 1 << 22  # indices in memory: 32 MB


@dataclass(frozen=True)
class Improvement:
    """The candidate's improvement over the champion. The bounds are one-sided, each with the given confidence; None if
    there are too few items."""

    value: float
    low: float | None
    high: float | None


def fewer(candidate: Floats, champion: Floats, confidence: float, resamples: int, seed: int) -> Improvement:
    """Return the fraction by which the candidate's total is lower than the champion's: 1 − Σ candidate / Σ champion."""
    return _bootstrap(candidate, champion, lambda a, b: 1 - a / b, confidence, resamples, seed)


def more(candidate: Floats, champion: Floats, confidence: float, resamples: int, seed: int) -> Improvement:
    """Return the difference by which the candidate's mean is higher than the champion's."""
    count = len(candidate)
    return _bootstrap(candidate, champion, lambda a, b: (a - b) / count, confidence, resamples, seed)


def _bootstrap(
    candidate: Floats,
    champion: Floats,
    statistic: Callable[[Floats, Floats], Floats],
    confidence: float,
    resamples: int,
    seed: int,
) -> Improvement:
    """Return `statistic` of both models' sums over the items, with bounds from its values for the resamples."""
    from scipy.stats import bootstrap  # takes a second to import, and the start of a run does not need it

    count = len(candidate)
    value = float(statistic(candidate.sum(), champion.sum()))
    if count < items_needed(confidence):
        return Improvement(value, None, None)
    bounds = bootstrap(
        (candidate, champion),
        lambda a, b, axis: statistic(a.sum(axis), b.sum(axis)),
        paired=True,
        n_resamples=resamples,
        batch=max(1, DRAWS_AT_ONCE // count),
        confidence_level=2 * confidence - 1,  # two-sided: 1 - confidence is beyond each bound
        method="percentile",
        rng=np.random.default_rng(seed),
    ).confidence_interval
    return Improvement(value, float(bounds.low), float(bounds.high))
