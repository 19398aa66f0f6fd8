"""Compare two evaluations, for the report, the promotion and the Compare page alike.

An evaluation's folder has the items that its metrics are aggregated from. An item is a document (bits per byte,
lm-eval) or a prompt (rewards). It has an amount and a weight; a metric is the sum of the amounts over the sum of the
weights: bits over bytes, a prompt's mean reward over 1.

    documents.jsonl      set, id, bytes, bits
    completions.jsonl    evaluator, id, prompt, reference, completion, rewards, …
    lm_eval.jsonl        evaluator, id, rewards
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import comb
from statistics import fmean
from typing import Any

from baton.infra.chance import SURE, Finding, judged, missing
from baton.infra.text import change, plus_minus

DOCUMENTS, COMPLETIONS, LM_EVAL = "documents.jsonl", "completions.jsonl", "lm_eval.jsonl"
BITS = "bits_per_byte"
SETS = {"old": ("corpus",), "new": ("more.",), "all": ("corpus", "more.")}  # prefixes of the sets' names
PASS_AT = "pass@"
PASSES = 1.0  # reward from which a completion passes
SAMPLES = 8  # prompts that are shown

Lines = Sequence[Mapping[str, Any]]
Items = dict[tuple[str, str], tuple[float, float]]  # (set or evaluator, id) -> (amount, weight)


@dataclass(frozen=True)
class Measured:
    """A metric of one model."""

    value: float
    standard_error: float | None
    count: int  # rows, documents, … that it was measured on
    items: Items = field(default_factory=dict)  # as far as they are known


@dataclass(frozen=True)
class MetricDifference:
    """A metric of one evaluation minus the same metric of another, in its unit."""

    value: float
    standard_error: float | None
    items: int  # documents or prompts
    paired: bool

    def finding(self, higher_is_better: bool | None) -> Finding:
        return judged(self.value, self.standard_error, self.items, higher_is_better)

    def missing(self, higher_is_better: bool | None) -> str:
        """Return why the finding is unknown, or "" if it is known."""
        return missing(self.standard_error, self.items, higher_is_better)

    def shown(self, unit: str, finding: Finding) -> str:
        """Format the difference with 1.96 standard errors, if they are known: −16.0 points ± 8.1."""
        known = self.standard_error is not None and finding != "unknown"
        return plus_minus(change(self.value, unit), SURE * (self.standard_error or 0.0) if known else None, unit)


def difference(old: Measured, new: Measured) -> MetricDifference:
    """The difference in a metric that both have: paired if both have the same items, so that the items' difficulty
    cancels out; otherwise with the standard error of independent samples."""
    if len(old.items) > 1 and old.items.keys() == new.items.keys():
        return _paired(old.items, new.items)
    errors = [error for error in (old.standard_error, new.standard_error) if error is not None]
    error = math.hypot(*errors) if len(errors) == 2 else None
    return MetricDifference(new.value - old.value, error, min(old.count, new.count), paired=False)


def _paired(old: Items, new: Items) -> MetricDifference:
    """A ratio of sums over items with its linearized standard error (see tasks/evaluate/bits_per_byte.py)."""
    total, count = math.fsum(weight for _, weight in new.values()), len(new)
    changes = [(new[item][0] - old[item][0], new[item][1]) for item in new]
    value = math.fsum(amount for amount, _ in changes) / total
    squares = math.fsum((amount - value * weight) ** 2 for amount, weight in changes)
    return MetricDifference(value, math.sqrt(squares * count / (count - 1)) / total, count, paired=True)


def items_of(name: str, documents: Lines, completions: Lines, lm_eval: Lines) -> Items:
    """A metric's items; empty if it is not a mean of items (share of distinct answers, perplexity)."""
    which, _, measure = ("old." + name if name == BITS else name).partition(".")
    if measure == BITS and which in SETS:
        prefixes = SETS[which]
        return {
            (line["set"], line["id"]): (float(line["bits"]), float(line["bytes"]))
            for line in documents
            if line["set"].startswith(prefixes)
        }
    values: dict[tuple[str, str], list[float | None]] = {}
    for line in (*completions, *lm_eval):
        if line["evaluator"] != which or not (rewards := line["rewards"]):
            continue
        reward = next(iter(rewards)) if measure.startswith(PASS_AT) else measure
        if reward in rewards:
            values.setdefault((which, line["id"]), []).append(rewards[reward])
    if measure.startswith(PASS_AT):
        k = int(measure.removeprefix(PASS_AT))
        found = {item: chance_of_pass(k, rewards) for item, rewards in values.items()}
    else:
        found = {item: known_mean(rewards) for item, rewards in values.items()}
    return {item: (value, 1.0) for item, value in found.items() if value is not None}


def chance_of_pass(k: int, completions: Sequence[float | None]) -> float | None:
    """Return pass@k of one prompt; None if the reward applies to none of its completions. A completion to which the
    reward does not apply counts as failed."""
    if all(reward is None for reward in completions):
        return None
    count = len(completions)
    passing = sum(reward is not None and reward >= PASSES for reward in completions)
    return 1 - comb(count - passing, k) / comb(count, k)


def known_mean(values: Iterable[float | None]) -> float | None:
    """Return the mean of the values that are not None; None if all are."""
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def common_samples(models: Sequence[Lines], shown: int = SAMPLES) -> list[list[list[Mapping[str, Any]]]]:
    """Return, for prompts that every model completed, evenly spaced through the set, all completions of each model."""
    answers = [_by_prompt(completions) for completions in models]
    common = [key for key in (answers[0] if answers else {}) if all(key in rows for rows in answers)]
    return [[rows[key] for rows in answers] for key in common[:: max(1, len(common) // shown)][:shown]]


def _by_prompt(completions: Lines) -> dict[tuple[str, str], list[Mapping[str, Any]]]:
    by_prompt: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in completions:
        by_prompt.setdefault((str(row["evaluator"]), str(row["id"])), []).append(row)
    return by_prompt


def as_text(value: Any) -> str:
    """A text, or a conversation as one line per turn."""
    if isinstance(value, str):
        return value
    turns = [(turn["role"], str(turn.get("content") or turn.get("tool_calls") or "")) for turn in value]
    return turns[0][1] if len(turns) == 1 else "\n".join(f"{role}: {text}" for role, text in turns)
