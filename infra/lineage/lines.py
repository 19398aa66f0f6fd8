"""An execution, a run or an artifact as a line of a table, and the progress of a run."""

import json
import time
from dataclasses import asdict
from typing import Any

from sqlalchemy.engine import Connection

from infra.lineage import facts
from infra.lineage.artifacts import FACT, Artifact
from infra.lineage.graph import Execution, Graph, Run

VALIDATION = "validation_loss"
SILENT_S = 300.0  # without a sign of life, after which a running stage is shown as silent

Line = dict[str, Any]


def artifact_line(artifact: Artifact) -> Line:
    return asdict(artifact)


def run_line(run: Run) -> Line:
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


def execution_line(graph: Graph, id: str) -> Line | None:
    found = graph.executions.get(id)
    if found is None:
        return None
    return {"id": id, "name": found.name, "status": found.status, "started": found.started}


def execution_rows(graph: Graph, connection: Connection, executions: list[Execution]) -> list[Line]:
    """Each execution's state, what it cost, how good its best model is, and how far it is."""
    stages = {each.id: graph.stages(each.id) for each in executions}
    runs = [run.id for some in stages.values() for run in some]
    headlines = {run: of[facts.HEADLINE] for run, of in facts.tags(connection, runs, facts.HEADLINE).items()}
    asked = {FACT + name for name in (VALIDATION, *headlines.values())}
    measured = facts.metrics(connection, runs, *asked, "cost_usd")
    units = facts.units(connection, headlines)
    prices = facts.tags(connection, runs, facts.PRICE)
    live = [run.id for each in executions if each.live for run in stages[each.id] if run.live]
    told = facts.tags(connection, live, "baton.progress")
    found = []
    for each in executions:
        best = _best(stages[each.id], headlines, measured, units)
        found.append(_row(each, stages[each.id], measured, prices, told) | {"best": best})
    return found


def _row(
    execution: Execution,
    stages: list[Run],
    measured: dict[str, dict[str, float]],
    prices: dict[str, dict[str, str]],
    told: dict[str, dict[str, str]],
) -> Line:
    costs = [facts.cost(prices.get(run.id, {}), measured.get(run.id, {}), run.took) for run in stages]
    known = [cost for cost in costs if cost is not None]
    return {
        "id": execution.id,
        "name": execution.name,
        "status": execution.status,
        "started": execution.started,
        "ended": execution.ended,
        "duration_s": (execution.ended or time.time()) - execution.started,
        "stages_ended": sum(not run.live for run in stages),
        "stages_cached": sum(run.cached for run in stages),
        "cost_usd": sum(known) if known else None,
        "progress": [progress(run, told[run.id]) for run in stages if run.id in told or (execution.live and run.live)],
        "live": execution.live,
    }


def _best(
    stages: list[Run],
    headlines: dict[str, str],
    measured: dict[str, dict[str, float]],
    units: dict[str, dict[str, facts.Unit]],
) -> Line | None:
    """The best value of the metric that the newest evaluation names as its headline; without any, the validation loss
    of the last checkpoint."""
    evaluations = [run.id for run in stages if run.id in headlines]
    if not evaluations:
        values = [
            measured[run.id][FACT + VALIDATION] for run in stages if FACT + VALIDATION in measured.get(run.id, {})
        ]
        return {"name": VALIDATION, "value": min(values), "unit": ""} if values else None
    name = headlines[evaluations[-1]]
    unit = units[evaluations[-1]].get(name, facts.Unit())
    values = [measured[run][FACT + name] for run in evaluations if FACT + name in measured.get(run, {})]
    if not values:
        return None
    return {"name": name, "value": (max if unit.higher_is_better else min)(values), "unit": unit.unit}


def progress(run: Run, tags: dict[str, str]) -> Line:
    """How far a running stage is, by what its forwarder last said, and how long it may still take."""
    now = time.time()
    found: Line = {
        "run": run.id,
        "stage": run.title,
        "done": 0.0,
        "total": 0.0,
        "unit": "",
        "shown": {},
        "left_s": None,
    }
    heard = run.started
    try:
        told = json.loads(tags.get("baton.progress", ""))
        found |= {"done": float(told["done"]), "total": float(told["total"]), "unit": str(told["unit"])}
        found["shown"] = dict(told["shown"])
        (before, since), heard = map(float, told["first"]), float(told["time"])
        if before < found["done"] <= found["total"]:
            found["left_s"] = (found["total"] - found["done"]) * (heard - since) / (found["done"] - before)
    except (ValueError, TypeError, KeyError):
        pass  # nothing said yet
    return found | {"silent_s": now - heard if now - heard > SILENT_S else None}


def findings(graph: Graph, connection: Connection, digest: str) -> list[Line]:
    """The evaluations and audits of an artifact, with their facts."""
    makers = {output: run for run in graph.children(digest) for output in graph.children(run)}
    told, measured = facts.tags(connection, makers.values()), facts.metrics(connection, makers.values())
    units = facts.units(connection, makers.values())
    found = []
    for child, run in makers.items():
        kind, about = told[run].get("baton.output.kind"), told[run].get("baton.fact.model_digest", digest)
        if kind in ("eval_report", "conversion_audit", "endpoint") and about == digest:
            values = {name.removeprefix(FACT): v for name, v in measured[run].items() if name.startswith(FACT)}
            told_units = facts.UNITS | {name: unit.unit for name, unit in units.get(run, {}).items()}
            title = graph.runs[run].title
            found.append({"digest": child, "title": title, "kind": kind, "facts": values, "units": told_units})
    return found
