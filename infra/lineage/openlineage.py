"""Export lineage as OpenLineage events (https://openlineage.io).

A stage is a job with a run, an artifact a dataset that is named by its digest. Equal contents may be made several
times: a dataset's version is the run that made it, as of the run that reads it. A run's inputs are the artifacts that
its output was made from, and only a run that made its output has an output; the rest is in the custom facet `baton`.
"""

import uuid
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any

from sqlalchemy.engine import Connection

from baton.infra.lineage import facts
from baton.infra.lineage.ancestry import Run
from baton.infra.lineage.graph import Graph

NAMESPACE = "baton"
PRODUCER = "urn:baton"
SPEC = "https://openlineage.io/spec"
EVENT = f"{SPEC}/2-0-2/OpenLineage.json#/$defs/RunEvent"
ENDS = {"FINISHED": "COMPLETE", "FAILED": "FAIL", "KILLED": "ABORT"}


def events(graph: Graph, connection: Connection, runs: Iterable[str]) -> list[dict[str, Any]]:
    """A START for each run, and a COMPLETE, FAIL or ABORT for each that has ended; parents first."""
    ids = graph.ancestry.in_order(runs)
    tags, params = facts.tags(connection, ids), facts.params(connection, ids)
    return [event for id in ids for event in _run_events(graph, graph.runs[id], tags.get(id, {}), params.get(id, {}))]


def _run_events(graph: Graph, run: Run, tags: dict[str, str], params: dict[str, str]) -> Iterator[dict[str, Any]]:
    origins = graph.ancestry.origins(run.id)
    fields: dict[str, Any] = {
        "cached": run.cached,
        "output": run.output,
        "other_inputs": {name: digest for name, digest in graph.inputs(run.id).items() if digest not in origins},
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
        "inputs": [_dataset(digest, maker) for digest, maker in origins.items()],
        "outputs": [],
        "producer": PRODUCER,
        "schemaURL": EVENT,
    }
    yield {"eventType": "START", "eventTime": _time(run.started), **event}
    if run.status in ENDS:
        outputs = [_dataset(run.output, run.id)] if run.output and run.id in graph.ancestry.maker_ids else []
        ended = run.ended or run.started
        yield {"eventType": ENDS[run.status], "eventTime": _time(ended), **event, "outputs": outputs}


def _dataset(digest: str, maker: str | None) -> dict[str, Any]:
    schema = f"{SPEC}/facets/1-0-1/DatasetVersionDatasetFacet.json#/$defs/DatasetVersionDatasetFacet"
    version = _facet(schema, datasetVersion=_uuid(maker) if maker else digest)
    return {"namespace": NAMESPACE, "name": digest, "facets": {"version": version}}


def _facet(schema: str, **fields: Any) -> dict[str, Any]:
    return {"_producer": PRODUCER, "_schemaURL": schema, **fields}


def _uuid(run: str) -> str:
    """A run's UUID: MLflow's run ids are UUIDs without their dashes."""
    try:
        return str(uuid.UUID(run))
    except ValueError:
        return str(uuid.uuid5(uuid.NAMESPACE_URL, f"{PRODUCER}:{run}"))


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
