"""Read a finished evaluation: its metrics, and the items that they aggregate (infra/evaluated.py)."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from baton.infra import evaluated
from baton.infra.evaluated import (
    BITS,
    COMPLETIONS,
    DOCUMENTS,
    LM_EVAL,
    SETS,
    Items,
    Measured,
    MetricDifference,
    items_of,
)
from baton.tasks.core.manifest import Manifest, read_manifest
from baton.tasks.core.metric import Metric, metrics_of
from baton.tasks.rows.stored import read_lines

__all__ = ["BITS", "SETS"]


@dataclass(frozen=True)
class Results:
    directory: Path
    manifest: Manifest
    label: str  # name of the model

    @property
    def model_digest(self) -> str:
        return str(self.manifest.facts["model_digest"])

    @property
    def measured(self) -> dict[str, str]:
        """Descriptions of the data that bits per byte and each evaluator's metrics were measured on."""
        return dict(self.manifest.facts.get("measured", {}))

    @cached_property
    def metrics(self) -> dict[str, Metric]:
        """The metrics in the order of the evaluators, which only report.json has."""
        return metrics_of(self.manifest.facts | self.report)

    @cached_property
    def report(self) -> dict[str, Any]:
        path = self.directory / "report.json"
        return dict(json.loads(path.read_text())) if path.exists() else {}

    @property
    def train(self) -> dict[str, Metric]:
        """Rewards on training rows, by the names of the metrics that have the same rewards on held-out rows."""
        return {name: Metric(**fields) for name, fields in self.report.get("train", {}).items()}

    @cached_property
    def documents(self) -> list[dict[str, Any]]:
        return _lines(self.directory / DOCUMENTS)

    @cached_property
    def completions(self) -> list[dict[str, Any]]:
        return _lines(self.directory / COMPLETIONS)

    @cached_property
    def lm_eval(self) -> list[dict[str, Any]]:
        return _lines(self.directory / LM_EVAL)

    def names(self) -> list[str]:
        """Names of the metrics with items: bits per byte of old, new and all text, and means of rewards or
        documents."""
        bits = [f"{which}.{BITS}" for which in SETS] if self.documents else []
        return bits + [name for name in self.metrics if name != BITS and self.items(name)]

    def metric(self, name: str) -> Metric | None:
        """Look up a metric; `old.bits_per_byte` is `bits_per_byte`, whose unit and direction it shares."""
        which, _, measure = name.partition(".")
        return self.metrics.get(measure if which in SETS and measure == BITS else name)

    def items(self, name: str) -> Items:
        """Return the metric's items; empty if it is not a mean of items (share of distinct answers, perplexity)."""
        return items_of(name, self.documents, self.completions, self.lm_eval)


def read_results(directory: Path) -> Results:
    """Open an EvalReport's directory. Raises ArtifactError."""
    manifest = read_manifest(directory)
    return Results(directory, manifest, str(manifest.facts["label"]))


def in_model_order(models: Iterable[tuple[str, str]], evaluations: Iterable[Results]) -> list[Results]:
    """Return the evaluation of each model, given by its label and digest, and then those of other models. Models with
    the same files share an evaluation, which has the label of the model that was evaluated first, maybe in another
    execution."""
    labels = list(models)
    by_digest = {evaluation.model_digest: evaluation for evaluation in evaluations}
    of_these = [replace(by_digest[digest], label=label) for label, digest in labels if digest in by_digest]
    others = by_digest.keys() - {digest for _, digest in labels}
    return [*of_these, *(evaluation for digest, evaluation in by_digest.items() if digest in others)]


def difference(before: Results, after: Results, name: str) -> MetricDifference:
    """Return the difference in a metric that both evaluations have (infra/evaluated.py)."""

    def measured(results: Results) -> Measured:
        metric = results.metrics[name]
        return Measured(metric.value, metric.standard_error, metric.count, results.items(name))

    return evaluated.difference(measured(before), measured(after))


def _lines(path: Path) -> list[dict[str, Any]]:
    return list(read_lines(path)) if path.exists() else []
