"""Export lineage as OpenLineage events (https://openlineage.io).

A stage is a job with a run, an artifact a dataset named by its digest; everything else is in the custom facet `baton`.
"""

import uuid
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any

from sqlalchemy.engine import Connection

from infra.lineage import facts
from infra.lineage.graph import Graph, Run

NAMESPACE = "baton"
PRODUCER = "urn:baton"
SPEC = "https://openlineage.io/spec"
EVENT = f"{SPEC}/2-0-2/OpenLineage.json#/$defs/RunEvent"
ENDS = {"FINISHED": "COMPLETE", "FAILED": "FAIL", "KILLED": "ABORT"}


def events(graph: Graph, connection: Connection, runs: Iterable[str]) -> list[dict[str, Any]]:
    """A START for each run, and a COMPLETE, FAIL or ABORT for each that has ended; parents first."""
    wanted = list(runs)
    adjacent = [node for run in wanted for node in (*graph.parents(run), *graph.children(run))]
    ids = [node for node in graph.in_order([*wanted, *adjacent]) if node in graph.runs]
    tags, params = facts.tags(connection, ids), facts.params(connection, ids)
    found = []
    for id in ids:
        found += list(_of_one(graph, graph.runs[id], tags.get(id, {}), params.get(id, {})))
    return found


def _of_one(graph: Graph, run: Run, tags: dict[str, str], params: dict[str, str]) -> Iterator[dict[str, Any]]:
    fields: dict[str, Any] = {
        "cached": run.cached,
        "spec": params,
        "command": tags.get("baton.command", ""),
        "commit": tags.get("mlflow.source.git.commit", "unknown"),
        "diff": tags.get("baton.code.diff", ""),
        **{name: facts.group(tags, name) for name in ("version", "machine", "placed")},
    }
    run_facets = {"baton": _facet(f"{SPEC}/2-0-2/OpenLineage.json#/$defs/RunFacet", **fields)}
    execution = graph.executions.get(run.execution)
    if execution:
        run_facets["parent"] = _facet(
            f"{SPEC}/facets/1-2-0/ParentRunFacet.json#/$defs/ParentRunFacet",
            run={"runId": _uuid(execution.run_id)},
            job={"namespace": NAMESPACE, "name": execution.name},
        )
    if error := tags.get("baton.error"):
        run_facets["errorMessage"] = _facet(
            f"{SPEC}/facets/1-0-1/ErrorMessageRunFacet.json#/$defs/ErrorMessageRunFacet",
            message=error,
            programmingLanguage="python",
        )
    event = {
        "run": {"runId": _uuid(run.id), "facets": run_facets},
        "job": {"namespace": NAMESPACE, "name": f"{execution.name}.{run.title}" if execution else run.title},
        "inputs": [_dataset(digest) for digest in dict.fromkeys(graph.inputs(run.id).values())],
        "outputs": [],
        "producer": PRODUCER,
        "schemaURL": EVENT,
    }
    yield {"eventType": "START", "eventTime": _time(run.started), **event}
    if run.status in ENDS:
        outputs = [_dataset(run.output)] if run.output else []
        ended = run.ended or run.started
        yield {"eventType": ENDS[run.status], "eventTime": _time(ended), **event, "outputs": outputs}


def _dataset(digest: str) -> dict[str, Any]:
    schema = f"{SPEC}/facets/1-0-1/DatasetVersionDatasetFacet.json#/$defs/DatasetVersionDatasetFacet"
    return {"namespace": NAMESPACE, "name": digest, "facets": {"version": _facet(schema, datasetVersion=digest)}}


def _facet(schema: str, **fields: Any) -> dict[str, Any]:
    return {"_producer": PRODUCER, "_schemaURL": schema, **fields}


def _uuid(run: str) -> str:
    """MLflow's run ids are UUIDs without their dashes."""
    try:
        return str(uuid.UUID(run))
    except ValueError:
        return str(uuid.uuid5(uuid.NAMESPACE_URL, f"{PRODUCER}:{run}"))


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
