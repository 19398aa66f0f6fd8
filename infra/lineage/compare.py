"""Two models side by side: scores, samples, recipes, histories, and curves in the same charts."""

import difflib
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any

import yaml
from sqlalchemy.engine import Connection

from baton.infra import evaluated
from baton.infra.chance import FEWEST
from baton.infra.drawing.charts import Points, curves
from baton.infra.drawing.graph import Artifact
from baton.infra.lineage import facts, files, reproduce
from baton.infra.lineage.ancestry import Run
from baton.infra.lineage.artifacts import describe
from baton.infra.lineage.diff import difference
from baton.infra.lineage.graph import Graph
from baton.infra.lineage.measured import Setting
from baton.infra.lineage.summaries import Row, artifact_row, execution_link, findings
from baton.infra.tracking.redact import redact

FILES = (evaluated.DOCUMENTS, evaluated.COMPLETIONS, evaluated.LM_EVAL)
Values = dict[Setting, "_Value"]  # values of one metric, by the data and settings of the measurement

LARGEST = 1e100  # limit of an item's values, whose squares are summed
CHOICES = 200  # the newest models, in the list to choose from
CONTEXT = 2  # unchanged lines around a change of the recipes


@dataclass(frozen=True)
class _Value:
    """A metric of one evaluation."""

    name: str
    report: Row

    @property
    def value(self) -> float:
        return float(self.report["facts"][self.name])

    @property
    def unit(self) -> facts.Unit:
        unit: facts.Unit = self.report["_units"].get(self.name, facts.Unit())
        return unit

    def measured(self) -> evaluated.Measured:
        """The measurement, with its items if the evaluation's files are at hand."""
        lines = _lines(self.report)
        try:
            items = evaluated.items_of(self.name, *lines) if lines else {}
        except (KeyError, TypeError, ValueError, AttributeError, StopIteration):  # files that Baton did not write
            items = {}
        if not all(abs(amount) < LARGEST and 0 < weight < LARGEST for amount, weight in items.values()):
            items = {}
        return evaluated.Measured(self.value, self.unit.standard_error, self.unit.count, items)


def comparison(graph: Graph, connection: Connection, a: str, b: str) -> dict[str, Any]:
    """Compare any two artifacts. Raises UnknownNode."""
    named = describe(graph, connection, [a, b])
    differences = difference(graph, connection, a, b)
    evaluations = {side: _evaluations(graph, connection, digest) for side, digest in (("a", a), ("b", b))}
    title_a, title_b = _title(named[a], named[b]), _title(named[b], named[a])
    curves_a, curves_b = _curves(graph, connection, a, b), _curves(graph, connection, b, a)
    both = {name: {"a": curves_a[name], "b": curves_b[name]} for name in curves_a if name in curves_b}
    fields = asdict(differences)
    return {
        "title": f"{title_a} and {title_b}",
        "a": artifact_row(named[a]) | {"title": title_a},
        "b": artifact_row(named[b]) | {"title": title_b},
        "difference": fields,
        "only": [pair for pair in fields["artifacts"] if None in (pair["a"], pair["b"])],
        "same": differences.none,
        "metrics": _metrics(evaluations["a"], evaluations["b"]),
        "min_items": FEWEST,
        "samples": _samples(evaluations["a"], evaluations["b"]),
        "recipes": _recipes(graph, connection, a, b),
        "curves": both,
        "_curves": [curves(name, {title_a: sides["a"], title_b: sides["b"]}) for name, sides in both.items()],
    }


def choices(graph: Graph, connection: Connection) -> list[Row]:
    """The newest models."""
    known = facts.with_tag(connection, "baton.output.kind", "hf_model")
    makers: dict[str, Run] = {}
    for run in sorted((graph.runs[id] for id in known if id in graph.runs), key=lambda run: -run.started):
        if run.output:
            makers[run.output] = run  # in the end the oldest run
    newest = list(makers)[:CHOICES]
    named = describe(graph, connection, newest)
    return [
        artifact_row(named[digest])
        | {"execution": execution_link(graph, makers[digest].execution), "when": makers[digest].started}
        for digest in newest
    ]


def _title(one: Artifact, other: Artifact) -> str:
    return one.name if one.name != other.name else f"{one.name} {one.digest[:6]}"


def _evaluations(graph: Graph, connection: Connection, digest: str) -> list[Row]:
    return [finding for finding in findings(graph, connection, digest) if finding["kind"] == "eval_report"]


def _metrics(a: list[Row], b: list[Row]) -> list[Row]:
    """Each metric of both models, from their newest evaluations on the same data with the same settings, and whether
    `b` is better or worse beyond chance. Without such evaluations the newest values stand side by side."""
    names = dict.fromkeys(name for report in (*a, *b) for name in report["facts"])
    return [_metric(name, *(_values(name, side) for side in (a, b))) for name in names]


def _values(name: str, reports: list[Row]) -> Values:
    """A metric of a model by the data and settings of the measurement, the newest last."""
    values: Values = {}
    for report in reports:
        if name in report["facts"]:
            measured_on = report["_settings"][name]
            values.pop(measured_on, None)
            values[measured_on] = _Value(name, report)
    return values


def _metric(name: str, a: Values, b: Values) -> Row:
    shared = next((measured_on for measured_on in reversed(b) if measured_on in a), None)
    one, other = (side[shared] if shared is not None else _newest(side) for side in (a, b))
    values = {side: each and each.value for side, each in (("a", one), ("b", other))}
    unit = (other and other.unit.unit) or (one and one.unit.unit) or ""
    row: Row = {"name": name, **values, "unit": unit, "change": "", "verdict": "", "paired": None}
    if one is None or other is None:
        return row
    if shared is None:
        return row | {"verdict": "other data or settings"}
    found = evaluated.difference(one.measured(), other.measured())
    verdict = found.finding(other.unit.higher_is_better if math.isfinite(one.value) else None)
    return row | {"change": found.shown(unit, verdict), "verdict": verdict, "paired": found.paired}


def _newest(values: Values) -> _Value | None:
    return next(reversed(values.values()), None)


def _samples(a: list[Row], b: list[Row]) -> list[Row]:
    """The first completions of both models for the same prompts as in their report, from the newest evaluations with
    common prompts whose files are at hand."""
    for one, other in product(reversed(a), reversed(b)):
        both = _lines(one), _lines(other)
        try:
            if all(both) and (common := evaluated.common_samples([lines[1] for lines in both])):
                return [_sample(*(redact(dict(rows[0])) for rows in sides)) for sides in common]
        except (KeyError, TypeError, ValueError, AttributeError):  # files that Baton did not write
            continue
    return []


def _lines(report: Row) -> list[list[Row]]:
    """The lines of an evaluation's files, read once; empty if one of them is not at hand."""
    if "_lines" not in report:
        lines = [files.lines_of(report["_job"], report["digest"], name) for name in FILES]
        report["_lines"] = [] if None in lines else lines
    found: list[list[Row]] = report["_lines"]
    return found


def _sample(one: Row, other: Row) -> Row:
    reference = one.get("reference")
    return {
        "evaluator": str(one["evaluator"]),
        "prompt": evaluated.as_text(one["prompt"]),
        "reference": None if reference is None else evaluated.as_text(reference),
        "a": _answer(one),
        "b": _answer(other),
    }


def _answer(sample: Row) -> Row:
    rewards = sample.get("rewards")
    completion = evaluated.as_text(sample.get("completion") or "")
    return {"completion": completion, "rewards": rewards if isinstance(rewards, dict) else {}}


def _recipes(graph: Graph, connection: Connection, a: str, b: str) -> list[str]:
    """The lines of a unified diff of the recipes that made them, without its header; empty when they are equal."""
    before, after = _recipe(graph, connection, a), _recipe(graph, connection, b)
    return list(difflib.unified_diff(before, after, n=CONTEXT, lineterm=""))[2:]


def _recipe(graph: Graph, connection: Connection, digest: str) -> Sequence[str]:
    maker = graph.maker(digest)
    execution = graph.executions.get(maker.execution) if maker else None
    if execution is None:
        return []
    params = facts.params(connection, [execution.run_id]).get(execution.run_id, {})
    return yaml.safe_dump(reproduce.recipe(params), sort_keys=False, allow_unicode=True).splitlines()


def _curves(graph: Graph, connection: Connection, digest: str, other: str) -> dict[str, Points]:
    """The curves of the upstream stages that the other artifact does not share, by stage and metric."""
    points_by_name: dict[str, Points] = {}
    shared = set(graph.ancestry.history(other))
    for run in graph.ancestry.history(digest):
        if run not in shared:
            for name, points in facts.curves(connection, run).items():
                points_by_name[f"{graph.runs[run].title} {name}"] = points
    return points_by_name
