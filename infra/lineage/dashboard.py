"""Models over time: every evaluator's metrics across the executions of a recipe, with the champion's line."""

import re
from collections import defaultdict
from statistics import fmean
from typing import Any

from sqlalchemy.engine import Connection

from baton.infra.drawing.charts import Points, curves
from baton.infra.lineage import facts
from baton.infra.lineage.ancestry import Run
from baton.infra.lineage.graph import Graph
from baton.infra.lineage.measured import Setting, breaks_of, setting
from baton.infra.lineage.registry import scores_of
from baton.infra.lineage.summaries import Row, execution_link

CHAMPION = "champion"
EXECUTIONS = 200  # the newest ones are shown
_SEED = re.compile(r"-seed\d+$")  # a repetition of a model with another seed


def recipes_evaluated(graph: Graph, connection: Connection) -> list[str]:
    """The names of the recipes with evaluations, that of the newest execution first."""
    runs = _evaluations(graph, connection)
    return list(dict.fromkeys(graph.executions[run.execution].name for run in reversed(runs)))


def dashboard(graph: Graph, connection: Connection, recipe: str) -> dict[str, Any]:
    """The evaluations of a recipe. Executions are numbered from the oldest; a model's seeds are averaged."""
    runs = [run for run in _evaluations(graph, connection) if graph.executions[run.execution].name == recipe]
    executions = sorted({run.execution for run in runs}, key=lambda id: graph.executions[id].started)[-EXECUTIONS:]
    number = {id: place for place, id in enumerate(executions, 1)}
    runs = [run for run in runs if run.execution in number]
    ids = [run.id for run in runs]
    tags = facts.tags(connection, ids, "baton.fact.label", "baton.fact.model_digest")
    measured, params = facts.metrics(connection, ids), facts.params(connection, ids)
    units: dict[str, facts.Unit] = {}
    for run_units in facts.units(connection, ids).values():
        units |= run_units

    values: dict[str, dict[str, dict[int, list[float]]]] = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    measured_on: dict[str, dict[str, dict[int, Setting]]] = defaultdict(lambda: defaultdict(dict))
    for run in _own_evaluations(graph, runs, tags):
        model = _SEED.sub("", tags.get(run.id, {}).get("baton.fact.label") or run.title)
        evaluated = tags.get(run.id, {}).get("baton.fact.model_digest", "")
        for name, value in facts.of_output(measured.get(run.id, {})).items():
            if name in units:
                values[name][model][number[run.execution]].append(value)
                on = setting(name, params.get(run.id, {}), run.inputs, evaluated)
                measured_on[name][model][number[run.execution]] = on
    champions = _champions(graph, connection, recipe)
    metrics: list[Row] = []
    for name, by_model in sorted(values.items()):
        lines = {model: _means(points) for model, points in by_model.items()}
        breaks = {model: breaks_of(points) for model, points in measured_on[name].items()}
        if line := _champion_line(champions, name, [graph.executions[id].started for id in executions]):
            lines[CHAMPION] = line
            breaks[CHAMPION] = sorted({step for steps in breaks.values() for step in steps})
        title = (name.partition(".")[2] or name) + (" (%)" if units[name].unit == "share" else "")
        drawn = curves(title, _per_cent(lines, units[name].unit), unit="execution", reference=CHAMPION, breaks=breaks)
        metrics.append(
            {
                "name": name,
                "evaluator": name.partition(".")[0] if "." in name else "text",
                "unit": units[name].unit,
                "higher_is_better": units[name].higher_is_better,
                "lines": lines,
                "breaks": breaks,
                "_svg": drawn,
            }
        )
    rows = [{"number": number[id], **(execution_link(graph, id) or {})} for id in reversed(executions)]
    return {"metrics": metrics, "executions": rows}


def _evaluations(graph: Graph, connection: Connection) -> list[Run]:
    """The runs of evaluations, cached ones left out, oldest first."""
    runs = (graph.runs.get(id) for id in facts.with_tag(connection, "baton.output.kind", "eval_report"))
    evaluations = [run for run in runs if run and not run.cached and run.execution in graph.executions]
    return sorted(evaluations, key=lambda run: run.started)


def _own_evaluations(graph: Graph, runs: list[Run], tags: dict[str, dict[str, str]]) -> list[Run]:
    """Select, among evaluations with the same label in one execution, such as those of a candidate and of the champion,
    only those of models that are outputs of that execution."""
    by_label: dict[tuple[str, str], list[Run]] = defaultdict(list)
    for run in runs:
        by_label[run.execution, tags.get(run.id, {}).get("baton.fact.label") or run.title].append(run)
    selected = []
    for (execution, _), some in by_label.items():
        outputs = {run.output for run in graph.stages(execution)} if len(some) > 1 else set()
        selected += [run for run in some if tags.get(run.id, {}).get("baton.fact.model_digest") in outputs] or some
    return selected


def _means(values: dict[int, list[float]]) -> Points:
    return [(float(number), fmean(some)) for number, some in sorted(values.items())]


def _per_cent(lines: dict[str, Points], unit: str) -> dict[str, Points]:
    if unit != "share":
        return lines
    return {name: [(number, 100 * value) for number, value in points] for name, points in lines.items()}


def _champions(graph: Graph, connection: Connection, recipe: str) -> list[tuple[float, dict[str, float]]]:
    """The registration time and the scores of each champion of the recipe, oldest first. Versions that were rolled back
    are left out."""
    champions = []
    for version in facts.versions(connection):
        tags = version["tags"]
        promoted = CHAMPION in version["aliases"] or tags.get("baton.outcome") == "promoted"
        maker = graph.maker(tags.get("baton.model", ""))
        execution = graph.executions.get(maker.execution) if maker else None
        if promoted and not version["set_aside"] and execution and execution.name == recipe:
            champions.append((version["when"], scores_of(tags)))
    return sorted(champions, key=lambda pair: pair[0])


def _champion_line(champions: list[tuple[float, dict[str, float]]], metric: str, started: list[float]) -> Points:
    """The champion's score when each execution ended: at the start of the next one."""
    points = []
    for number, until in enumerate([*started[1:], float("inf")], 1):
        scores = [scores[metric] for when, scores in champions if when < until and metric in scores]
        if scores:
            points.append((float(number), scores[-1]))
    return points
