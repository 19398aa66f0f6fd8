"""Read a finished evaluation: its metrics, and the items they are aggregated from.

An item is a document (bits per byte, lm-eval) or a prompt (rewards). It has an amount and a weight; a metric is the sum
of the amounts over the sum of the weights: bits over bytes, a prompt's mean reward over 1.
"""

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from tasks.core.manifest import Manifest, read_manifest
from tasks.core.metric import Metric, known_mean, metrics_of
from tasks.evaluate.estimates import chance_of_pass
from tasks.rows.stored import read_lines

BITS = "bits_per_byte"
SETS = {"old": ("corpus",), "new": ("more.",), "all": ("corpus", "more.")}  # prefixes of the sets' names
PASS_AT = "pass@"

Items = dict[tuple[str, str], tuple[float, float]]  # (set or evaluator, id) -> (amount, weight)


@dataclass(frozen=True)
class MetricDifference:
    """A metric of one evaluation minus the same metric of another, in its unit."""

    value: float
    standard_error: float | None
    items: int  # documents or prompts


@dataclass(frozen=True)
class Results:
    directory: Path
    manifest: Manifest
    label: str  # of the model

    @property
    def model_digest(self) -> str:
        return str(self.manifest.facts["model_digest"])

    @property
    def measured(self) -> dict[str, str]:
        """What bits per byte and each evaluator's metrics were measured on, in words."""
        return dict(self.manifest.facts.get("measured", {}))

    @cached_property
    def metrics(self) -> dict[str, Metric]:
        """In the order of the evaluators, which only report.json keeps."""
        return metrics_of(self.manifest.facts | self.report)

    @cached_property
    def report(self) -> dict[str, Any]:
        path = self.directory / "report.json"
        return dict(json.loads(path.read_text())) if path.exists() else {}

    @cached_property
    def documents(self) -> list[dict[str, Any]]:
        return _lines(self.directory / "documents.jsonl")

    @cached_property
    def completions(self) -> list[dict[str, Any]]:
        return _lines(self.directory / "completions.jsonl")

    @cached_property
    def lm_eval(self) -> list[dict[str, Any]]:
        return _lines(self.directory / "lm_eval.jsonl")

    def names(self) -> list[str]:
        """Names of the metrics with items: bits per byte of old, new and all text, means of rewards or documents."""
        bits = [f"{which}.{BITS}" for which in SETS] if self.documents else []
        return bits + [name for name in self.metrics if name != BITS and self.items(name)]

    def metric(self, name: str) -> Metric | None:
        """Look up a metric; `old.bits_per_byte` is `bits_per_byte`, whose unit and direction it shares."""
        which, _, measure = name.partition(".")
        return self.metrics.get(measure if which in SETS and measure == BITS else name)

    def items(self, name: str) -> Items:
        """The metric's items; empty if it is not a mean of items (share of distinct answers, perplexity)."""
        which, _, measure = ("old." + name if name == BITS else name).partition(".")
        if measure == BITS and which in SETS:
            prefixes = SETS[which]
            return {
                (line["set"], line["id"]): (float(line["bits"]), float(line["bytes"]))
                for line in self.documents
                if line["set"].startswith(prefixes)
            }
        values: dict[tuple[str, str], list[float | None]] = {}
        for line in (*self.completions, *self.lm_eval):
            if line["evaluator"] != which or not (rewards := line["rewards"]):
                continue
            reward = next(iter(rewards)) if measure.startswith(PASS_AT) else measure
            if reward in rewards:
                values.setdefault((which, line["id"]), []).append(rewards[reward])
        if measure.startswith(PASS_AT):
            k = int(measure.removeprefix(PASS_AT))
            found = {item: chance_of_pass(k, completions) for item, completions in values.items()}
        else:
            found = {item: known_mean(completions) for item, completions in values.items()}
        return {item: (value, 1.0) for item, value in found.items() if value is not None}


def read_results(directory: Path) -> Results:
    """Open an EvalReport's directory. Raises ArtifactError."""
    manifest = read_manifest(directory)
    return Results(directory, manifest, str(manifest.facts["label"]))


def of_models(models: Iterable[tuple[str, str]], evaluations: Iterable[Results]) -> list[Results]:
    """The evaluation of each model, given by its label and digest, and then those of other models. Models with the same
    files share an evaluation, which has the label of the one that was evaluated first, maybe in another execution."""
    labels = list(models)
    by_digest = {evaluation.model_digest: evaluation for evaluation in evaluations}
    of_these = [replace(by_digest[digest], label=label) for label, digest in labels if digest in by_digest]
    others = by_digest.keys() - {digest for _, digest in labels}
    return [*of_these, *(evaluation for digest, evaluation in by_digest.items() if digest in others)]


def difference(before: Results, after: Results, name: str) -> MetricDifference:
    """The difference in a metric that both have: paired if both have the same items, so that the items' difficulty
    cancels out; otherwise with the standard error of independent samples."""
    old, new = before.metrics[name], after.metrics[name]
    old_items, new_items = before.items(name), after.items(name)
    if len(old_items) > 1 and old_items.keys() == new_items.keys():
        return _paired(old_items, new_items)
    errors = (old.standard_error, new.standard_error)
    known = [error for error in errors if error is not None]
    error = math.hypot(*known) if len(known) == len(errors) else None
    return MetricDifference(new.value - old.value, error, min(old.count, new.count))


def _paired(old: Items, new: Items) -> MetricDifference:
    """A ratio of sums over items with its linearized standard error (see tasks/evaluate/bits_per_byte.py)."""
    total, count = math.fsum(weight for _, weight in new.values()), len(new)
    changes = [(new[item][0] - old[item][0], new[item][1]) for item in new]
    value = math.fsum(amount for amount, _ in changes) / total
    squares = math.fsum((amount - value * weight) ** 2 for amount, weight in changes)
    return MetricDifference(value, math.sqrt(squares * count / (count - 1)) / total, count)


def _lines(path: Path) -> list[dict[str, Any]]:
    return list(read_lines(path)) if path.exists() else []
