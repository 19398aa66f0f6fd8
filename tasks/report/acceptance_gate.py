"""Compare each tuned model with the model from which it started, metric by metric, and a merged model with each of its
sources."""

import math
from collections.abc import Collection
from dataclasses import dataclass, replace

from baton.infra.chance import Finding
from baton.infra.evaluated import MetricDifference
from baton.infra.text import change, plus_minus
from baton.tasks.core.metric import Metric
from baton.tasks.core.seeds import Spread, without_seed
from baton.tasks.evaluate.results import Results, difference
from baton.tasks.models.adapter_base import BASE
from baton.tasks.pages.blocks import Block, Cell, Mark, Table, Text, Tone
from baton.tasks.pages.source import Source

MARKS: dict[Finding, str] = {"better": "✓", "worse": "✗", "within noise": "≈", "unknown": ""}
TONES: dict[Finding, Tone] = {"better": "good", "worse": "bad", "within noise": "quiet", "unknown": "quiet"}
MOST_NAMES = 5  # of metrics in a sentence


@dataclass(frozen=True)
class Line:
    """One metric's change from one model to another."""

    name: str
    metric: Metric  # the tuned model's
    difference: MetricDifference
    finding: Finding
    missing: str = ""  # why the finding is unknown

    def cell(self) -> Cell:
        """Return a cell such as "✓ +33.3 points ± 4.6"."""
        shown = self.difference.shown(self.metric.unit, self.finding)
        return Mark(f"{MARKS[self.finding]} {shown}".strip(), TONES[self.finding])


def compare(before: Results, after: Results) -> list[Line]:
    """Compare two models in every metric that both have."""
    lines = []
    for name, metric in after.metrics.items():
        if name in before.metrics:
            diff = difference(before, after, name)
            is_number = math.isfinite(before.metrics[name].value)
            better = metric.higher_is_better if is_number else None
            missing = diff.missing(better) if is_number else "no number before"
            lines.append(Line(name, metric, diff, diff.finding(better), missing))
    return lines


def evaluations_of(digests: Collection[str], evaluations: list[Results]) -> list[Results]:
    """Return the evaluation of each model with one of these digests."""
    by_digest: dict[str, Results] = {}
    for evaluation in evaluations:
        if evaluation.model_digest in digests:
            by_digest.setdefault(evaluation.model_digest, evaluation)
    return list(by_digest.values())


def started_from(model: Source) -> list[str]:
    """Return the digests of a model's inputs, without the base of an input that is an adapter."""
    parents = model.manifest.parents
    bases = {f"{name}.{BASE}" for name in parents}
    return [digest for name, digest in parents.items() if name not in bases]


def verdict(models: list[Source], evaluations: list[Results]) -> list[Block]:
    """Return a line for each tuned model, and one table with a row per metric and a column per model (its seeds
    together). Empty unless a model and the one from which it started were both evaluated."""
    comparisons: dict[str, list[list[Line]]] = {}
    texts: list[Block] = []
    for model in models:
        before = evaluations_of(started_from(model), evaluations)
        for evaluation in evaluations_of([model.manifest.digest], evaluations):
            after = replace(evaluation, label=model.label)
            for one in before:
                start = "the model it started from" if len(before) == 1 else "which it was made from"
                if one.model_digest != after.model_digest:
                    texts.append(Text(_against(one, after, start, comparisons)))
    if not comparisons:
        return texts
    names = list(dict.fromkeys(line.name for runs in comparisons.values() for lines in runs for line in lines))
    rows: list[list[Cell]] = [[name, *[_cell(name, runs) for runs in comparisons.values()]] for name in names]
    caption = "Change from the model each was tuned from, ± 1.96 standard errors: ✓ better, ✗ worse, ≈ within noise"
    if any(len(runs) > 1 for runs in comparisons.values()):
        caption += "; with several seeds: the mean change ± its sample standard deviation, and a mark per seed"
    return [*texts, Table(caption, ["metric", *comparisons], rows)]


def _against(before: Results, after: Results, start: str, comparisons: dict[str, list[list[Line]]]) -> str:
    """Return a sentence on one model against another, and add the lines of their comparison to `comparisons`."""
    lines = compare(before, after)
    comparisons.setdefault(f"{without_seed(after.label)} from {without_seed(before.label)}", []).append(lines)
    counts = [f"{number} {finding}" for finding in MARKS if (number := sum(line.finding == finding for line in lines))]
    if unknown := _unknown(lines):
        counts[-1] += f" ({unknown})"
    return f"{after.label} against {before.label}, {start}: {', '.join(counts)}."


def _unknown(lines: list[Line]) -> str:
    """Return the metrics whose change is not judged, with the reason; empty if there is none."""
    by_reason: dict[str, list[str]] = {}
    for line in lines:
        if line.missing:
            by_reason.setdefault(line.missing, []).append(line.name)
    return "; ".join(
        f"{', '.join(names[:MOST_NAMES])}{' …' * (len(names) > MOST_NAMES)}: {reason}"
        for reason, names in by_reason.items()
    )


def unchanged(models: list[Source]) -> list[str]:
    """Return a sentence for each model that has the weights of the model from which it started."""
    return [
        f"{model.label} has the same weights as the model it started from: training changed nothing."
        for model in models
        if model.manifest.digest in started_from(model)
    ]


def _cell(name: str, runs: list[list[Line]]) -> Cell:
    """Return a cell with one model's change in a metric, in a single run or over its seeds."""
    lines = [line for run in runs for line in run if line.name == name]
    if len(lines) < 2:
        return lines[0].cell() if lines else "–"
    over, unit = Spread.of([line.difference.value for line in lines]), lines[0].metric.unit
    shown = plus_minus(change(over.mean, unit), over.deviation, unit)
    findings = {line.finding for line in lines}
    marks = "".join(MARKS[line.finding] for line in lines)
    return Mark(f"{marks} {shown}".strip(), TONES[findings.pop()] if len(findings) == 1 else "quiet")
