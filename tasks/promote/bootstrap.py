"""How sure a difference between two models is: the paired bootstrap.

Both models were measured on the same items. Items are drawn anew with replacement, both models' figures
along with each, so that what makes an item hard for both cancels out; the bounds are percentiles of the
statistic over the draws. (Efron and Tibshirani, An Introduction to the Bootstrap, 1993, chapter 13;
Koehn, Statistical Significance Tests for Machine Translation Evaluation, 2004.) Of few items the
percentiles are somewhat too sure: where 95 of 100 are asked, 200 documents of uneven sizes give 94, 40
give 93, and 20 give 92 (measured, 3,000 worlds each).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
DRAWS_AT_ONCE = 1 << 22  # indices in memory: 32 MB


@dataclass(frozen=True)
class Difference:
    """How much better the candidate is. The bounds are one-sided, each with the confidence asked for; None
    where there are too few items for any."""

    value: float
    low: float | None
    high: float | None


def fewer(candidate: Floats, champion: Floats, confidence: float, resamples: int, seed: int) -> Difference:
    """By what share of the champion's total the candidate's is less: 1 − Σ candidate / Σ champion."""
    return _bootstrap(candidate, champion, lambda ours, theirs: 1 - ours / theirs, confidence, resamples, seed)


def more(candidate: Floats, champion: Floats, confidence: float, resamples: int, seed: int) -> Difference:
    """By how much the candidate's mean is more than the champion's."""
    count = len(candidate)
    return _bootstrap(candidate, champion, lambda ours, theirs: (ours - theirs) / count, confidence, resamples, seed)


def items_needed(confidence: float) -> int:
    """With fewer items not even all of them pointing the same way is that sure (the sign test)."""
    return math.ceil(math.log2(1 / (1 - confidence)) - 1e-9)


def _bootstrap(
    candidate: Floats,
    champion: Floats,
    statistic: Callable[[Floats, Floats], Floats],
    confidence: float,
    resamples: int,
    seed: int,
) -> Difference:
    """`statistic` of both models' sums, over the items and over each draw of as many of them."""
    count = len(candidate)
    value = float(statistic(candidate.sum(), champion.sum()))
    if count < items_needed(confidence):
        return Difference(value, None, None)
    generator = np.random.default_rng(seed)
    found = np.empty(resamples)
    step = max(1, DRAWS_AT_ONCE // count)
    for begin in range(0, resamples, step):
        drawn = generator.integers(count, size=(min(step, resamples - begin), count))
        found[begin : begin + step] = statistic(candidate[drawn].sum(axis=1), champion[drawn].sum(axis=1))
    low, high = np.quantile(found, [1 - confidence, confidence])
    return Difference(value, float(low), float(high))
