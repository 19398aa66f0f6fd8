"""Executions, runs and artifacts as rows of a table, and the progress of a run."""

import time
from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy.engine import Connection

from baton.infra.drawing.graph import Artifact
from baton.infra.lineage import facts
from baton.infra.lineage.ancestry import Run
from baton.infra.lineage.graph import Execution, Graph
from baton.infra.lineage.measured import setting
from baton.infra.tracking.mlflow_records import OUTPUT, PLAN_TAG, SEEN_TAG

VALIDATION = "validation_loss"
FINDINGS = ("eval_report", "conversion_audit", "endpoint")  # kinds
SILENT_S = 300.0  # without a sign of life, a run on another machine is shown as silent
SILENT = "SILENT"

Row = dict[str, Any]


def artifact_row(artifact: Artifact) -> Row:
    return asdict(artifact)


def run_row(run: Run) -> Row:
    return {
        "id": run.id,
        "title": run.title,
        "status": run.status,
        "cached": run.cached,
        "started": run.started,
        "ended": run.ended,
        "duration_s": run.took,
        "output": run.output,
    }


def execution_link(graph: Graph, id: str) -> Row | None:
    execution = graph.executions.get(id)
    if execution is None:
        return None
    return {"id": id, "name": execution.name, "status": execution.status, "started": execution.started}


@dataclass(frozen=True)
class _Measured:
    """Everything that the rows of some executions need from the database, by run."""

    metrics: dict[str, dict[str, float]]
    units: dict[str, dict[str, facts.Unit]]
    tags: dict[str, dict[str, str]]


def execution_rows(graph: Graph, connection: Connection, executions: list[Execution]) -> list[Row]:
    """Each execution's state, cost, best model and progress."""
    stages = {execution.id: graph.stages(execution.id) for execution in executions}
    runs = [run.id for some in stages.values() for run in some]
    tags = facts.tags(connection, runs, facts.HEADLINE, facts.PRICE, "baton.fact.label")
    headlines = {run: run_tags[facts.HEADLINE] for run, run_tags in tags.items() if facts.HEADLINE in run_tags}
    live = [run.id for execution in executions if execution.live for run in stages[execution.id] if run.live]
    for run, run_tags in facts.tags(connection, live, "baton.progress", SEEN_TAG).items():
        tags[run] = tags.get(run, {}) | run_tags
    metrics = facts.metrics(
        connection, runs, *{OUTPUT + name for name in (VALIDATION, *headlines.values())}, "cost_usd"
    )
    measured = _Measured(metrics, facts.units(connection, headlines), tags)
    annotations = facts.annotations(connection, [execution.run_id for execution in executions])
    return [
        _execution_row(graph, execution, stages[execution.id], measured) | annotations[execution.run_id]
        for execution in executions
    ]


def _execution_row(graph: Graph, execution: Execution, stages: list[Run], measured: _Measured) -> Row:
    costs = [facts.cost(measured.tags.get(run.id, {}), measured.metrics.get(run.id, {}), run.took) for run in stages]
    known = [cost for cost in costs if cost is not None]
    live = [run for run in stages if run.live] if execution.live else []
    silent = silent_s(graph, execution, stages, measured.tags)
    return {
        "id": execution.id,
        "name": execution.name,
        "status": SILENT if silent else execution.status,
        "silent_s": silent,
        "started": execution.started,
        "ended": execution.ended,
        "duration_s": (execution.ended or time.time()) - execution.started,
        "stages_ended": sum(not run.live for run in stages),
        "stages_cached": sum(run.cached for run in stages),
        "cost_usd": sum(known) if known else None,
        "best": _best(stages, measured),
        "progress": [progress(run, measured.tags.get(run.id, {})) for run in live],
        "live": execution.live,
    }


def silent_s(graph: Graph, execution: Execution, stages: list[Run], tags: dict[str, dict[str, str]]) -> float | None:
    """Seconds since the last sign of life of an execution that should be running elsewhere; None if it gives signs."""
    if not execution.live or execution.id in graph.alive_here:
        return None
    signs = [execution.started, *(run.ended or run.started for run in stages)]
    for run_tags in (tags.get(run.id, {}) for run in stages if run.live):
        signs += [_float(run_tags.get(SEEN_TAG)), _float(_progress_of(run_tags).get("time"))]
    silent = time.time() - max(signs)
    return silent if silent > SILENT_S else None


def run_silent_s(graph: Graph, connection: Connection, run: Run) -> float | None:
    """`silent_s` of a run's execution, while the run should be running."""
    execution = graph.executions.get(run.execution)
    if execution is None or not run.live:
        return None
    stages = graph.stages(run.execution)
    tags = facts.tags(connection, [stage.id for stage in stages if stage.live], "baton.progress", SEEN_TAG)
    return silent_s(graph, execution, stages, tags)


def _best(stages: list[Run], measured: _Measured) -> Row | None:
    """The chosen model and its metric, if the execution chose one; else the best value of the metric that the newest
    evaluation names as its headline, and the model's label; without an evaluation, the lowest validation loss. Models
    that another execution made, such as the champion, count only if none of its own was evaluated."""
    evaluated = [run for run in stages if facts.HEADLINE in measured.tags.get(run.id, {})]
    made = {run.output for run in stages}
    chosen = [run for run in evaluated if run.kind == "choice"]
    evaluated = chosen or [run for run in evaluated if run.inputs.get("model") in made] or evaluated
    name, unit = VALIDATION, facts.Unit("", higher_is_better=False)
    if evaluated:
        newest = evaluated[-1].id
        name = measured.tags[newest][facts.HEADLINE]
        unit = measured.units.get(newest, {}).get(name, facts.Unit())
    values = {run.id: measured.metrics.get(run.id, {}).get(OUTPUT + name) for run in evaluated or stages}
    known = {run: value for run, value in values.items() if value is not None}
    if not known or unit.higher_is_better is None:
        return None
    best = (max if unit.higher_is_better else min)(known, key=known.__getitem__)
    # a cached evaluation has the label of the model with the same files that was evaluated first
    digest = next(run.inputs.get("model") for run in stages if run.id == best)
    maker = next((run.id for run in stages if digest and run.output == digest), best)
    model = measured.tags.get(maker, {}).get("baton.fact.label", "")
    return {"name": name, "value": known[best], "unit": unit.unit, "model": model}


def progress(run: Run, tags: dict[str, str]) -> Row:
    """Return the progress of a running stage and its estimated remaining time, from the last uploaded record."""
    row: Row = {"run": run.id, "stage": run.title, "done": 0.0, "total": 0.0, "unit": "", "shown": {}, "left_s": None}
    record = _progress_of(tags)
    try:
        row |= {"done": float(record["done"]), "total": float(record["total"]), "unit": str(record["unit"])}
        row["shown"] = dict(record["shown"])
        (before, since), now = map(float, record["first"]), float(record["time"])
        if before < row["done"] <= row["total"]:
            row["left_s"] = (row["total"] - row["done"]) * (now - since) / (row["done"] - before)
    except (ValueError, TypeError, KeyError):
        pass  # nothing was reported yet
    return row


def _progress_of(tags: dict[str, str]) -> dict[str, Any]:
    record = facts.json_or(tags.get("baton.progress", ""))
    return record if isinstance(record, dict) else {}


def _float(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        return 0.0


def in_order(stages: list[Run], tags: dict[str, str]) -> list[Run]:
    """Stages as planned, those of one title and unplanned ones in the order of their start: on a cluster, cached stages
    are recorded last."""
    places = {title: place for place, title in reversed([*enumerate(_plan(tags))])}
    return sorted(stages, key=lambda run: places.get(run.title, len(places)))


def _plan(tags: dict[str, str]) -> list[str]:
    titles = facts.json_or(tags.get(PLAN_TAG, ""))
    return [str(title) for title in titles] if isinstance(titles, list) else []


def stages_to_come(graph: Graph, execution: Execution, stages: list[Run], tags: dict[str, str]) -> list[Row]:
    """The planned stages that have not started, with the time that each took when it last ran in this recipe."""
    planned = _plan(tags) if execution.live else []
    started = Counter(run.title for run in stages)
    took = durations(graph, execution.name) if planned else {}
    rows = []
    for title in planned:
        started[title] -= 1
        if started[title] < 0:
            rows.append({"title": title, "expected_s": took.get(title)})
    return rows


def durations(graph: Graph, name: str) -> dict[str, float]:
    """Seconds that each stage took when it last ran in an execution of this name."""
    executions = {execution.id for execution in graph.executions.values() if execution.name == name}
    runs = sorted(graph.runs.values(), key=lambda run: run.started)
    return {
        run.title: run.took
        for run in runs
        if run.execution in executions and run.status == "FINISHED" and not run.cached and run.took
    }


def time_left(running: list[Row], to_come: list[Row]) -> Row | None:
    """Seconds until an execution ends, and whether that counts every stage; None when nothing is known."""
    parts = [row["left_s"] for row in running] + [row["expected_s"] for row in to_come]
    known = [seconds for seconds in parts if seconds is not None]
    return {"seconds": sum(known), "complete": len(known) == len(parts)} if known else None


def findings(graph: Graph, connection: Connection, digest: str) -> list[Row]:
    """The evaluations and audits of an artifact, with their facts, oldest first."""
    first: dict[str, Run] = {}
    for run in graph.readers(digest):
        if run.output and run.kind in FINDINGS:
            first.setdefault(run.output, run)
    runs = [run.id for run in first.values()]
    tags, measured = facts.tags(connection, runs), facts.metrics(connection, runs)
    units, params = facts.units(connection, runs), facts.params(connection, runs)
    rows = []
    for child, run in first.items():
        if tags[run.id].get("baton.fact.model_digest", digest) != digest:
            continue
        values = facts.of_output(measured.get(run.id, {}))
        known = units.get(run.id, {})
        rows.append(
            {
                "digest": child,
                "title": run.title,
                "kind": run.kind,
                "facts": values,
                "units": facts.UNITS | {name: unit.unit for name, unit in known.items()},
                "errors": {name: unit.standard_error for name, unit in known.items()},
                "lower_is_better": [name for name, unit in known.items() if unit.higher_is_better is False],
                "_units": known,
                "_settings": {name: setting(name, params.get(run.id, {}), run.inputs, digest) for name in values},
                "_job": tags[run.id].get("baton.job"),
            }
        )
    return rows
