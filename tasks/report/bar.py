"""Did the tuning make each model better? Each tuned model against the one that it started from, in every metric."""

import math
from dataclasses import dataclass
from typing import Literal

from infra.text import change, words
from tasks.evaluate.results import Results, difference, read_results
from tasks.metric import Metric
from tasks.report.blocks import Block, Cell, Mark, Table, Text
from tasks.report.source import Source

SURE = 1.96  # standard errors: 95 of 100 differences of equal models are within

Finding = Literal["better", "worse", "within noise", "unknown"]
MARKS: dict[Finding, str] = {"better": "✓", "worse": "✗", "within noise": "≈", "unknown": ""}


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
        said = f"{MARKS[self.found]} {change(self.change, self.metric.unit)}".strip()
        if self.standard_error is not None:
            scale, digits = (100, 1) if self.metric.unit == "share" else (1, 3)
            said += f" ± {scale * SURE * self.standard_error:.{digits}f}"
        return Mark(said, "good" if self.found == "better" else "bad" if self.found == "worse" else "quiet")


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
    """A line for each tuned model, and a table of all: a row a metric, a column a model. Nothing where no model and the
    one that it started from were both evaluated."""
    found: dict[str, list[Line]] = {}
    said: list[Block] = []
    for model in models:
        before, after = start_of(model, evaluations), evaluation_of(model, evaluations)
        if before is None or after is None or before is after:
            continue
        lines = compare(read_results(before.directory), read_results(after.directory))
        found[f"{after.label} from {before.label}"] = lines
        counts = [f"{number} {each}" for each in MARKS if (number := sum(line.found == each for line in lines))]
        said.append(Text(f"{after.label} against {before.label}, the model it started from: {', '.join(counts)}."))
    if not found:
        return []
    names = list(dict.fromkeys(line.name for lines in found.values() for line in lines))
    by_name = [{line.name: line.cell() for line in lines} for lines in found.values()]
    rows: list[list[Cell]] = [[words(name), *[cells.get(name, "–") for cells in by_name]] for name in names]
    caption = (
        "Change from the model that each was tuned from, ± 1.96 standard errors: ✓ better, ✗ worse, ≈ within noise"
    )
    return [*said, Table(caption, ["metric", *found], rows)]


def _finding(metric: Metric, change: float, error: float | None) -> Finding:
    if error is None:
        return "unknown"
    if not math.isfinite(change):
        return "worse"
    if abs(change) <= SURE * error:
        return "within noise"
    return "better" if (change > 0) == metric.higher_is_better else "worse"
