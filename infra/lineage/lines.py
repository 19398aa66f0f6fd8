"""What is said of an execution, a run or an artifact in a line, and of how far a run is."""

import json
import time
from dataclasses import asdict
from typing import Any

from sqlalchemy.engine import Connection

from infra.lineage import facts
from infra.lineage.artifacts import FACT, Artifact
from infra.lineage.graph import Execution, Graph, Run

SILENT_S = 300.0  # without a sign of life a running stage is said to be silent

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
    measured = facts.metrics(connection, runs, *(FACT + name for name, _ in facts.MEASURES), "cost_usd")
    prices = facts.tags(connection, runs, facts.PRICE)
    live = [run.id for each in executions if each.live for run in stages[each.id] if run.live]
    told = facts.tags(connection, live, "baton.progress")
    return [_row(each, stages[each.id], measured, prices, told) for each in executions]


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
        "best": _best([measured.get(run.id, {}) for run in stages]),
        "progress": [progress(run, told[run.id]) for run in stages if run.id in told or (execution.live and run.live)],
        "live": execution.live,
    }


def _best(measured: list[dict[str, float]]) -> Line | None:
    """The best value of the measure that tells most."""
    for name, more in facts.MEASURES:
        if values := [of[FACT + name] for of in measured if FACT + name in of]:
            return {"name": name, "value": (max if more else min)(values)}
    return None


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
    found = []
    for child, run in makers.items():
        kind, about = told[run].get("baton.output.kind"), told[run].get("baton.fact.model_digest", digest)
        if kind in ("eval_report", "conversion_audit", "endpoint") and about == digest:
            values = {name.removeprefix(FACT): v for name, v in measured[run].items() if name.startswith(FACT)}
            found.append({"digest": child, "title": graph.runs[run].title, "kind": kind, "facts": values})
    return found
