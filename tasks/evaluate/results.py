"""A finished evaluation, as other stages read it: its metrics, and their items.

An item is a document (bits per byte, lm-eval) or a prompt (rewards). It has an amount and a weight, and a metric is the
sum of the amounts over the sum of the weights: bits over bytes, a prompt's mean reward over 1.
"""

import json
import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tasks.evaluate.estimates import chance_of_pass, reward_of
from tasks.manifest import ArtifactError, Manifest, read_manifest
from tasks.metric import Metric, metrics_of

BITS = "bits_per_byte"
SETS = {"old": ("corpus",), "new": ("more.",), "all": ("corpus", "more.")}  # beginnings of the sets' names
PASS_AT = "pass@"

Items = dict[tuple[str, str], tuple[float, float]]  # (set or evaluator, id) -> (amount, weight)


@dataclass(frozen=True)
class Difference:
    """A metric of one evaluation minus that of another, in the metric's unit."""

    value: float
    standard_error: float | None


@dataclass(frozen=True)
class Results:
    directory: Path
    manifest: Manifest

    @property
    def label(self) -> str:
        return str(self.manifest.facts["label"])

    @property
    def model_digest(self) -> str:
        return str(self.manifest.facts["model_digest"])

    @cached_property
    def metrics(self) -> dict[str, Metric]:
        """In the order of the evaluators, which report.json has and the manifest has not."""
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
        """The metrics that have items: bits per byte of old, new and all text, and means of rewards or documents."""
        bits = [f"{which}.{BITS}" for which in SETS] if self.documents else []
        return bits + [name for name in self.metrics if name != BITS and self.items(name)]

    def metric(self, name: str) -> Metric | None:
        """By name; for `old.bits_per_byte` it is `bits_per_byte`, whose unit and direction it shares."""
        which, _, measure = name.partition(".")
        return self.metrics.get(measure if which in SETS and measure == BITS else name)

    def items(self, name: str) -> Items:
        """Empty where the metric has no items: a share of distinct answers, a perplexity."""
        which, _, measure = ("old." + name if name == BITS else name).partition(".")
        if measure == BITS and which in SETS:
            begins = SETS[which]
            return {
                (line["set"], line["id"]): (float(line["bits"]), float(line["bytes"]))
                for line in self.documents
                if line["set"].startswith(begins)
            }
        found: dict[tuple[str, str], list[float | None]] = {}
        for line in (*self.completions, *self.lm_eval):
            if line["evaluator"] != which or not (rewards := line["rewards"]):
                continue
            reward = next(iter(rewards)) if measure.startswith(PASS_AT) else measure
            if reward in rewards:
                found.setdefault((which, line["id"]), []).append(rewards[reward])
        if measure.startswith(PASS_AT):
            k = int(measure.removeprefix(PASS_AT))
            return {item: (chance_of_pass(k, values), 1.0) for item, values in found.items()}
        means = {item: reward_of(values) for item, values in found.items()}
        return {item: (mean, 1.0) for item, mean in means.items() if mean is not None}


def read_results(directory: Path) -> Results:
    """The evaluation in a report's directory. Raises ArtifactError."""
    manifest = read_manifest(directory)
    if "metrics" not in manifest.facts:
        raise ArtifactError(f"{directory}: an older version of the evaluation made it; evaluate the model again")
    return Results(directory, manifest)


def difference(before: Results, after: Results, name: str) -> Difference:
    """The difference in a metric that both have. Where the items are the same it is taken item by item, so that what
    makes an item hard for both cancels out; otherwise the standard errors are those of independent figures."""
    old, new = before.metrics[name], after.metrics[name]
    of_old, of_new = before.items(name), after.items(name)
    if len(of_old) > 1 and of_old.keys() == of_new.keys():
        return _paired(of_old, of_new)
    errors = (old.standard_error, new.standard_error)
    known = [error for error in errors if error is not None]
    return Difference(new.value - old.value, math.hypot(*known) if len(known) == len(errors) else None)


def _paired(old: Items, new: Items) -> Difference:
    """The linearized standard error of a ratio of sums, over items (see tasks/evaluate/bits.py)."""
    weight, count = math.fsum(each for _, each in new.values()), len(new)
    apart = [(new[item][0] - old[item][0], new[item][1]) for item in new]
    value = math.fsum(amount for amount, _ in apart) / weight
    squares = math.fsum((amount - value * of) ** 2 for amount, of in apart)
    return Difference(value, math.sqrt(squares * count / (count - 1)) / weight)


def _lines(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    with path.open() as stream:
        return [json.loads(line) for line in stream]
