"""Did the tuning make each model better? Each tuned model against the one that it started from, in every metric."""

import math
from dataclasses import dataclass
from typing import Literal

from infra.text import change, plus_minus, words
from tasks.evaluate.results import Results, difference, read_results
from tasks.metric import Metric
from tasks.report.blocks import Block, Cell, Mark, Table, Text, Tone
from tasks.report.source import Source
from tasks.seeds import Spread, without_seed

SURE = 1.96  # standard errors: 95 of 100 differences of equal models are within

Finding = Literal["better", "worse", "within noise", "unknown"]
MARKS: dict[Finding, str] = {"better": "✓", "worse": "✗", "within noise": "≈", "unknown": ""}
TONES: dict[Finding, Tone] = {"better": "good", "worse": "bad", "within noise": "quiet", "unknown": "quiet"}


@dataclass(frozen=True)
class Line:
    """A metric of both models."""

    name: str
    metric: Metric  # of the tuned model
    change: float
    standard_error: float | None  # of the change
    found: Finding

    def cell(self) -> Cell:
        """✓ +33.3 points ± 4.6"""
        error = None if self.standard_error is None else SURE * self.standard_error
        shown = plus_minus(change(self.change, self.metric.unit), error, self.metric.unit)
        return Mark(f"{MARKS[self.found]} {shown}".strip(), TONES[self.found])


def compare(before: Results, after: Results) -> list[Line]:
    """Every metric that both have."""
    found = []
    for name, metric in after.metrics.items():
        if name in before.metrics:
            apart = difference(before, after, name)
            error = apart.standard_error
            found.append(Line(name, metric, apart.value, error, _finding(metric, apart.value, error)))
    return found


def start_of(model: Source, evaluations: list[Source]) -> Source | None:
    """The evaluation of the model that `model` was tuned from, by its parents' digests."""
    parents = set(model.manifest.parents.values())
    return next((each for each in evaluations if evaluated(each) in parents), None)


def evaluation_of(model: Source, evaluations: list[Source]) -> Source | None:
    return next((each for each in evaluations if evaluated(each) == model.manifest.digest), None)


def evaluated(evaluation: Source) -> str:
    """The digest of the model that was evaluated."""
    return str(evaluation.manifest.facts["model_digest"])


def verdict(models: list[Source], evaluations: list[Source]) -> list[Block]:
    """A line for each tuned model, and a table of all: a row a metric, a column a model, whose seeds are taken
    together. Nothing where no model and the one that it started from were both evaluated."""
    found: dict[str, list[list[Line]]] = {}
    texts: list[Block] = []
    for model in models:
        before, after = start_of(model, evaluations), evaluation_of(model, evaluations)
        if before is None or after is None:
            continue
        if before is after:
            texts.append(Text(f"{model.label} has the weights that it started from: its training changed nothing."))
            continue
        lines = compare(read_results(before.directory), read_results(after.directory))
        found.setdefault(f"{without_seed(after.label)} from {without_seed(before.label)}", []).append(lines)
        counts = [f"{number} {each}" for each in MARKS if (number := sum(line.found == each for line in lines))]
        texts.append(Text(f"{after.label} against {before.label}, the model it started from: {', '.join(counts)}."))
    if not found:
        return texts
    names = list(dict.fromkeys(line.name for runs in found.values() for lines in runs for line in lines))
    rows: list[list[Cell]] = [[words(name), *[_cell(name, runs) for runs in found.values()]] for name in names]
    caption = (
        "Change from the model that each was tuned from, ± 1.96 standard errors: ✓ better, ✗ worse, ≈ within noise"
    )
    if any(len(runs) > 1 for runs in found.values()):
        caption += "; of several seeds the mean change ± its sample standard deviation, with a sign for each"
    return [*texts, Table(caption, ["metric", *found], rows)]


def _cell(name: str, runs: list[list[Line]]) -> Cell:
    """A metric of one model: of one run, or over its seeds."""
    found = [line for lines in runs for line in lines if line.name == name]
    if len(found) < 2:
        return found[0].cell() if found else "–"
    over, unit = Spread.of([line.change for line in found]), found[0].metric.unit
    shown = plus_minus(change(over.mean, unit), over.deviation, unit)
    findings = {line.found for line in found}
    marks = "".join(MARKS[line.found] for line in found)
    return Mark(f"{marks} {shown}".strip(), TONES[findings.pop()] if len(findings) == 1 else "quiet")


def _finding(metric: Metric, change: float, error: float | None) -> Finding:
    if error is None:
        return "unknown"
    if not math.isfinite(change):
        return "worse"
    if abs(change) <= SURE * error:
        return "within noise"
    return "better" if (change > 0) == metric.higher_is_better else "worse"
