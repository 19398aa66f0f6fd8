"""Pair two evaluations item by item, and check that they can be compared (see tasks/evaluate/results.py)."""

from typing import Any

import numpy as np

from baton.tasks.core.job import StageError
from baton.tasks.core.metric import NO_DIRECTION
from baton.tasks.evaluate.results import BITS, SETS, Results
from baton.tasks.promote.bootstrap import Floats
from baton.tasks.promote.spec import PromotionSpec


def figures(candidate: Results, champion: Results | None, name: str) -> tuple[Floats, Floats, Floats]:
    """Return the candidate's amounts, the champion's and the weights, for the items of a metric that both models have.
    (A reward may apply to the completion of one model only.) Without a champion the second array is empty."""
    candidate_items, champion_items = candidate.items(name), champion.items(name) if champion else {}
    items = [item for item in candidate_items if champion is None or item in champion_items]
    return (
        np.array([candidate_items[item][0] for item in items]),
        np.array([champion_items[item][0] for item in items if champion]),
        np.array([candidate_items[item][1] for item in items]),
    )


def check_known(spec: PromotionSpec, candidate: Results) -> None:
    """Raise StageError if the rule names a metric that was not measured, or that has no items."""
    known = candidate.names()
    bits = [f"{which}.{BITS}" for which in SETS]  # may be bounded by default, and have no text
    named = [("metric", spec.metric), *(("regressions", name) for name in spec.regressions if name not in bits)]
    for field, name in named:
        metric = candidate.metric(name)
        if metric is None:
            raise StageError(
                f"promote.{field}: {name}: the evaluation has no such metric; it has {', '.join(known) or 'none'}. "
                "Name one of these, or add the evaluator under `evaluate`"
            )
        if name not in [*known, *bits]:
            raise StageError(
                f"promote.{field}: {name}: it has no values per item, by which two models are compared; name one of "
                f"{', '.join(known)}"
            )
        if metric.higher_is_better is None:
            raise StageError(f"promote.{field}: {name}: name {NO_DIRECTION}")


def check_comparable(candidate: Results, champion: Results) -> None:
    """Raise StageError unless both were evaluated with the same spec on the same documents and prompts."""
    specs = candidate.report["spec"], champion.report["spec"]
    for name in dict.fromkeys([*specs[0], *specs[1]]):
        first, second = (spec.get(name) for spec in specs)
        if first != second:
            raise _incomparable(
                f"evaluate.{name} is {first!r:.200} for the candidate and {second!r:.200} for the champion"
            )
    for what in ("documents", "completions", "lm_eval"):
        first, second = ([_identity(row) for row in getattr(results, what)] for results in (candidate, champion))
        if first != second:
            different = len(set(first) ^ set(second))
            raise _incomparable(
                f"the candidate has {len(first)} held-out {what}, the champion {len(second)}, and {different} of them "
                "only one model has" + ("" if different else " (their order differs)")
            )


def _incomparable(what: str) -> StageError:
    return StageError(
        f"the two evaluations cannot be compared: {what}. Evaluate both models with the same spec on the same corpora "
        "and rows, and with the same tokenizer"
    )


def _identity(row: dict[str, Any]) -> tuple[Any, ...]:
    return row.get("set", row.get("evaluator")), row["id"], row.get("bytes")
