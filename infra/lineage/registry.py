"""The model registry: versions, their scores, and the artifacts that each was trained from."""

from collections import Counter
from collections.abc import Collection
from typing import Any

from sqlalchemy.engine import Connection

from baton.infra.drawing.charts import curves
from baton.infra.lineage import facts
from baton.infra.lineage.ancestry import Run
from baton.infra.lineage.artifacts import describe
from baton.infra.lineage.graph import Graph
from baton.infra.lineage.measured import breaks_of, setting
from baton.infra.lineage.summaries import artifact_row
from baton.infra.tracking.set_aside import OUTCOME_TAG, REFUSED_TAG, ROLLED_BACK, TERMS_TAG

SCORE = "baton.eval."  # + name: a metric's value
MOST = 6  # metrics in a table or drawn


def registered(graph: Graph, connection: Connection) -> list[dict[str, Any]]:
    """Each registered model with its versions, newest first."""
    versions = facts.versions(connection)
    models = {version["tags"].get("baton.model", "") for version in versions}
    known = set(filter(graph.is_artifact, models))
    origins = {digest: _origins(graph, digest) for digest in known}
    named = describe(graph, connection, known.union(*origins.values()))
    evaluations = _evaluations(graph, connection, known)
    params = facts.params(connection, [run.id for run in evaluations.values()])
    by_name: dict[str, list[dict[str, Any]]] = {}
    for version in versions:
        tags = version["tags"]
        digest = tags.get("baton.model", "")
        row = {key: version[key] for key in ("version", "when", "description", "aliases")}
        row["model"] = artifact_row(named[digest]) if digest in named else None
        row["scores"] = scores_of(tags)
        row["units"] = {name: facts.unit_of(tag).unit for name, tag in facts.group(tags, "metric").items()}
        row["outcome"] = ROLLED_BACK if version["set_aside"] else tags.get(OUTCOME_TAG) or _undecided(tags)
        row["reason"] = tags.get(REFUSED_TAG if row["outcome"] == "refused" else "baton.decision.words", "")
        row["from"] = [artifact_row(named[origin]) for origin in origins.get(digest, ())]
        run = evaluations.get(digest)
        row["_settings"] = {
            name: setting(name, params.get(run.id, {}), run.inputs, digest) for name in row["scores"] if run
        }
        by_name.setdefault(version["name"], []).append(row)
    return [
        {"name": name, "versions": some, "metrics": _shown(some), "_curves": _over_versions(some)}
        for name, some in by_name.items()
    ]


def versions_of(connection: Connection, digest: str) -> list[dict[str, Any]]:
    """The registered versions of an artifact."""
    tags = ("baton.digest", "baton.model")
    return [version for version in facts.versions(connection) if digest in (version["tags"].get(tag) for tag in tags)]


def _origins(graph: Graph, digest: str) -> list[str]:
    """The artifacts by which its content was imported: the text of each increment, rows, models; oldest first."""
    made_at: dict[str, float] = {}  # by digest
    maker = graph.maker(digest)
    waiting, seen = [maker.id] if maker else [], set[str]()
    while waiting:
        run = graph.runs[waiting.pop()]
        origins = graph.ancestry.origins(run.id)
        made_at |= {read: 0.0 for read in run.content if origins[read] is None}
        if not run.content and run.output and run.output != digest:
            made_at[run.output] = run.started
        new = [source for read in run.content if (source := origins[read]) and source not in seen]
        seen.update(new)
        waiting += new
    return sorted(made_at, key=lambda node: (made_at[node], node))


def scores_of(tags: dict[str, str]) -> dict[str, float]:
    """A version's metrics, from its tags."""
    scores: dict[str, float] = {}
    for name, value in tags.items():
        if name.startswith(SCORE):
            try:
                scores[name.removeprefix(SCORE)] = float(value)
            except ValueError:
                continue  # not written by Baton
    return scores


def _undecided(tags: dict[str, str]) -> str | None:
    """The state of a version without an outcome."""
    match facts.json_or(tags.get(TERMS_TAG, "")):
        case [*_, {"why": str(why)}] if why.startswith(ROLLED_BACK):
            return ROLLED_BACK
    return "refused" if REFUSED_TAG in tags else None


def _shown(versions: list[dict[str, Any]]) -> list[str]:
    """The metrics of the versions, the most frequent first."""
    counts = Counter(name for row in versions for name in row["scores"])
    return sorted(counts, key=lambda name: (-counts[name], name))[:MOST]


def _evaluations(graph: Graph, connection: Connection, models: Collection[str]) -> dict[str, Run]:
    """The first evaluation of each model."""
    runs = [run for run in graph.ancestry.by_age if run.kind == "eval_report" and not run.cached]
    about = facts.tags(connection, [run.id for run in runs], "baton.fact.model_digest")
    by_model = {about.get(run.id, {}).get("baton.fact.model_digest", ""): run for run in reversed(runs)}
    return {model: by_model[model] for model in models if model in by_model}


def _over_versions(versions: list[dict[str, Any]]) -> list[Any]:
    """The metrics over the versions, interrupted where the data or settings of the measurement change."""
    drawn = []
    for name in _shown(versions):
        rows = sorted((row for row in versions if name in row["scores"]), key=lambda row: int(row["version"]))
        points = [(float(row["version"]), row["scores"][name]) for row in rows]
        breaks = breaks_of({int(row["version"]): row["_settings"].get(name, ()) for row in rows})
        if len(points) > 1:
            drawn.append(curves(name, {name: points}, unit="version", breaks={name: breaks}))
    return drawn
