"""The rule by which a candidate is promoted, kept or rejected.

promoted   the main metric is better by more than the margin, with confidence, and no metric's
           regression is beyond its bound
rejected   some metric's regression is beyond its bound, with confidence; or a metric is not a number; or the
           new text is too far from the old
kept       anything else: the champion keeps serving, and training continues from the candidate
"""

import math
from dataclasses import dataclass

from baton.infra.chance import items_needed
from baton.infra.text import change
from baton.tasks.evaluate.results import BITS, SETS, Results
from baton.tasks.promote.bootstrap import Improvement, fewer, more
from baton.tasks.promote.paired_scores import figures
from baton.tasks.promote.spec import PromotionSpec

PROMOTED, KEPT, REJECTED = "promoted", "kept", "rejected"


@dataclass(frozen=True)
class Measure:
    """One metric of both models. A positive difference means that the candidate is better; its units are those of
    PromotionSpec. The bounds are one-sided."""

    name: str
    unit: str
    items: int  # documents or prompts
    candidate: float | None  # None: there was nothing to measure it on, or it is not a number
    champion: float | None = None
    difference: float | None = None
    low: float | None = None
    high: float | None = None
    margin: float | None = None  # required improvement of the main metric
    allowed: float | None = None  # the largest accepted regression
    met: bool | None = None  # whether margin and allowed hold; None: neither is set


@dataclass(frozen=True)
class Verdict:
    outcome: str
    reason: str
    measures: list[Measure]


def judge(spec: PromotionSpec, candidate: Results, champion: Results | None) -> Verdict:
    """Compare both models item by item; `champion` is None if there is none yet."""
    names = list(dict.fromkeys([spec.metric, *spec.regressions, *candidate.names()]))
    measures = [_measure(name, spec, candidate, champion) for name in names]
    broken = [measure.name for measure in measures if measure.items and measure.candidate is None]
    if broken:
        return Verdict(REJECTED, f"Rejected: {broken[0]} of the candidate is not a number.", measures)
    if champion is None:
        return Verdict(PROMOTED, "Promoted: the first model, there is no champion to compare it with.", measures)
    if (ratio := new_text_ratio(measures)) and spec.max_new_text_ratio and ratio > spec.max_new_text_ratio:
        reason = (
            f"Rejected: {far(ratio)} (allowed: {spec.max_new_text_ratio:g} times), so the new text is set aside. If "
            "text of its kind is to be learned, raise promotion.max_new_text_ratio."
        )
        return Verdict(REJECTED, reason, measures)
    main = next(measure for measure in measures if measure.name == spec.metric)
    beyond = [measure for measure in measures if _beyond(measure, measure.difference)]
    surely = [measure for measure in beyond if _beyond(measure, measure.high)]
    sure = f"with {100 * spec.confidence:g} % confidence"
    if surely:
        (worst, *_) = surely
        reason = (
            f"Rejected: {_name(worst)} is worse than the champion's by {_size(worst, worst.difference)}, by "
            f"{_size(worst, worst.high)} or more {sure} (allowed: {_size(worst, worst.allowed)})."
        )
        return Verdict(REJECTED, reason, measures)
    if beyond:
        (worst, *_) = beyond
        reason = (
            f"Kept: {_name(worst)} is worse than the champion's by {_size(worst, worst.difference)} (allowed: "
            f"{_size(worst, worst.allowed)}), which may be chance: the champion stays."
        )
        return Verdict(KEPT, reason, measures)
    if main.difference is None:
        return Verdict(KEPT, f"Kept: there is nothing to measure {_name(main)} on: the champion stays.", measures)
    main_text = f"{_name(main)} is {'better' if main.difference > 0 else 'no better'} than the champion's"
    if main.low is None:
        needed = f"{items_needed(spec.confidence)} are needed to be sure {sure}"
        return Verdict(KEPT, f"Kept: {main_text}, on {main.items} items; {needed}: the champion stays.", measures)
    main_text += f" by {_size(main, main.difference)}" if main.difference > 0 else ""
    if main.met:
        main_text += f", by {_size(main, main.low)} or more {sure} (required: more than {_size(main, spec.margin)})"
        return Verdict(PROMOTED, f"Promoted: {main_text}, and nothing regressed beyond its bound.", measures)
    main_text += (
        f"; {sure} its difference is {_signed(main, main.low)} or more, and {_signed(main, spec.margin)} is required"
    )
    return Verdict(KEPT, f"Kept: {main_text}: the champion stays.", measures)


def new_text_ratio(measures: list[Measure]) -> float | None:
    """Return the champion's bits per byte on the new text over those on the old; None if they were not measured."""
    bits = {measure.name: measure.champion for measure in measures}
    old, new = (bits.get(f"{which}.{BITS}") for which in ("old", "new"))
    return new / old if old and new else None


def far(ratio: float) -> str:
    """Describe the distance of the new text from the old."""
    return f"the champion needs {ratio:.1f} times as many bits per byte for the new text as for the old"


def _measure(name: str, spec: PromotionSpec, candidate: Results, champion: Results | None) -> Measure:
    amounts, champion_amounts, weights = figures(candidate, champion, name)
    metric = candidate.metric(name)
    if metric is None or not len(amounts):
        return Measure(name, metric.unit if metric else "", 0, None)
    value = _finite(float(amounts.sum() / weights.sum()))
    if champion is None or value is None:
        return Measure(name, metric.unit, len(amounts), value)
    if _is_relative(name):
        difference = fewer(amounts, champion_amounts, spec.confidence, spec.resamples, spec.seed)
    else:
        sign = 1 if metric.higher_is_better else -1
        difference = more(sign * amounts, sign * champion_amounts, spec.confidence, spec.resamples, spec.seed)
    margin = spec.margin if name == spec.metric else None
    allowed = spec.regressions.get(name)
    return Measure(
        name,
        metric.unit,
        len(amounts),
        value,
        _finite(float(champion_amounts.sum() / weights.sum())),
        _finite(difference.value),
        _finite(difference.low),
        _finite(difference.high),
        margin,
        allowed,
        _met(difference, margin, allowed),
    )


def _met(difference: Improvement, margin: float | None, allowed: float | None) -> bool | None:
    conditions = [difference.low is not None and difference.low > margin] if margin is not None else []
    conditions += [difference.value >= -allowed] if allowed is not None else []
    return all(conditions) if conditions else None


def _beyond(measure: Measure, difference: float | None) -> bool:
    return measure.allowed is not None and difference is not None and difference < -measure.allowed


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _is_relative(name: str) -> bool:
    """Return whether differences of a metric are relative to the champion's value."""
    which, _, measure = name.partition(".")
    return which in SETS and measure == BITS


def _name(measure: Measure) -> str:
    which, _, name = measure.name.partition(".")
    if not _is_relative(measure.name):
        return measure.name
    return f"{name.replace('_', ' ')} on {'all' if which == 'all' else f'the {which}'} text"


def _size(measure: Measure, difference: float | None) -> str:
    return _signed(measure, abs(difference or 0.0)).lstrip("+")


def _signed(measure: Measure, difference: float) -> str:
    return f"{100 * difference:+.2f} %" if _is_relative(measure.name) else change(difference, measure.unit)
