"""Models over time: every evaluator's metrics across the executions of a recipe, with the champion's line."""

import re
from collections import defaultdict
from statistics import fmean
from typing import Any

from sqlalchemy.engine import Connection

from infra.charts import Points, curves
from infra.lineage import facts
from infra.lineage.artifacts import FACT
from infra.lineage.graph import Graph, Run
from infra.lineage.registry import scores_of
from infra.lineage.summaries import Row, execution_link
from infra.text import words

CHAMPION = "champion"
EXECUTIONS = 200  # the newest that are shown
_SEED = re.compile(r"-seed\d+$")  # a repetition of a model with another seed


def recipes_evaluated(graph: Graph, connection: Connection) -> list[str]:
    """The names of the recipes with evaluations, the newest execution's first."""
    runs = _evaluations(graph, connection)
    return list(dict.fromkeys(graph.executions[run.execution].name for run in reversed(runs)))


def dashboard(graph: Graph, connection: Connection, recipe: str) -> dict[str, Any]:
    """The evaluations of a recipe. Executions are numbered from the oldest; a model's seeds are averaged."""
    runs = [run for run in _evaluations(graph, connection) if graph.executions[run.execution].name == recipe]
    executions = sorted({run.execution for run in runs}, key=lambda id: graph.executions[id].started)[-EXECUTIONS:]
    number = {id: place for place, id in enumerate(executions, 1)}
    runs = [run for run in runs if run.execution in number]
    tags = facts.tags(connection, [run.id for run in runs], "baton.fact.label")
    measured = facts.metrics(connection, [run.id for run in runs])
    units: dict[str, facts.Unit] = {}
    for found in facts.units(connection, [run.id for run in runs]).values():
        units |= found

    values: dict[str, dict[str, dict[int, list[float]]]] = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    for run in runs:
        model = _SEED.sub("", tags.get(run.id, {}).get("baton.fact.label") or run.title)
        for name, value in measured.get(run.id, {}).items():
            if name.startswith(FACT) and (name := name.removeprefix(FACT)) in units:
                values[name][model][number[run.execution]].append(value)
    champions = _champions(graph, connection, recipe)
    metrics: list[Row] = []
    for name, by_model in sorted(values.items()):
        lines = {model: _means(of) for model, of in by_model.items()}
        if line := _champion_line(champions, name, [graph.executions[id].started for id in executions]):
            lines[CHAMPION] = line
        title = words(name.partition(".")[2] or name) + (" (%)" if units[name].unit == "share" else "")
        metrics.append(
            {
                "name": name,
                "evaluator": name.partition(".")[0] if "." in name else "text",
                "unit": units[name].unit,
                "higher_is_better": units[name].higher_is_better,
                "lines": lines,
                "_svg": curves(title, _per_cent(lines, units[name].unit), unit="execution", reference=CHAMPION).svg,
            }
        )
    rows = [{"number": number[id], **(execution_link(graph, id) or {})} for id in reversed(executions)]
    return {"metrics": metrics, "executions": rows}


def _evaluations(graph: Graph, connection: Connection) -> list[Run]:
    """The runs of evaluations, cached ones left out, oldest first."""
    runs = (graph.runs.get(id) for id in facts.with_tag(connection, "baton.output.kind", "eval_report"))
    found = [run for run in runs if run and not run.cached and run.execution in graph.executions]
    return sorted(found, key=lambda run: run.started)


def _means(values: dict[int, list[float]]) -> Points:
    return [(float(number), fmean(some)) for number, some in sorted(values.items())]


def _per_cent(lines: dict[str, Points], unit: str) -> dict[str, Points]:
    if unit != "share":
        return lines
    return {name: [(number, 100 * value) for number, value in points] for name, points in lines.items()}


def _champions(graph: Graph, connection: Connection, recipe: str) -> list[tuple[float, dict[str, float]]]:
    """When each champion of the recipe was registered, and its scores; oldest first. Versions that were rolled back are
    left out."""
    found = []
    for version in facts.versions(connection):
        tags = version["tags"]
        promoted = CHAMPION in version["aliases"] or tags.get("baton.outcome") == "promoted"
        names = {graph.executions[run.execution].name for run in _makers(graph, tags.get("baton.model", ""))}
        if promoted and "baton.rolled_back" not in tags and recipe in names:
            found.append((version["when"], scores_of(tags)))
    return sorted(found, key=lambda pair: pair[0])


def _makers(graph: Graph, digest: str) -> list[Run]:
    return [run for run in map(graph.runs.__getitem__, graph.parents(digest)) if run.execution in graph.executions]


def _champion_line(champions: list[tuple[float, dict[str, float]]], metric: str, started: list[float]) -> Points:
    """The champion's score when each execution ended: at the start of the next one."""
    points = []
    for number, until in enumerate([*started[1:], float("inf")], 1):
        scores = [scores[metric] for when, scores in champions if when < until and metric in scores]
        if scores:
            points.append((float(number), scores[-1]))
    return points
