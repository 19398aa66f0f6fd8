"""The model registry: its versions, how good they are, and what each was trained from."""

from collections import Counter
from typing import Any

from sqlalchemy.engine import Connection

from infra.charts import curves
from infra.lineage import facts
from infra.lineage.artifacts import describe
from infra.lineage.graph import Graph
from infra.lineage.lines import artifact_line

SCORE = "baton.eval."  # + name: a metric's value
MOST = 6  # metrics in a table or drawn, the first by name


def registered(graph: Graph, connection: Connection) -> list[dict[str, Any]]:
    """Each registered model with its versions, newest first."""
    found = facts.versions(connection)
    known = {digest for each in found if (digest := each["tags"].get("baton.model", "")) in graph}
    origins = {digest: _origins(graph, digest) for digest in known}
    named = describe(graph, connection, known.union(*origins.values()))
    by_name: dict[str, list[dict[str, Any]]] = {}
    for each in found:
        digest = each["tags"].get("baton.model", "")
        told = {key: each[key] for key in ("version", "when", "description", "aliases")}
        told["model"] = artifact_line(named[digest]) if digest in named else None
        told["scores"] = _scores(each["tags"])
        told["units"] = {name: facts.unit_of(told).unit for name, told in facts.group(each["tags"], "metric").items()}
        told["outcome"] = "rolled back" if "baton.rolled_back" in each["tags"] else each["tags"].get("baton.outcome")
        told["reason"] = each["tags"].get("baton.decision.words", "")
        told["from"] = [artifact_line(named[origin]) for origin in origins.get(digest, ())]
        by_name.setdefault(each["name"], []).append(told)
    return [
        {"name": name, "versions": some, "metrics": _shown(some), "_curves": _over_versions(some)}
        for name, some in by_name.items()
    ]


def versions_of(connection: Connection, digest: str) -> list[dict[str, Any]]:
    """The versions that an artifact is registered as."""
    tags = ("baton.digest", "baton.model")
    return [each for each in facts.versions(connection) if digest in (each["tags"].get(tag) for tag in tags)]


def _origins(graph: Graph, digest: str) -> list[str]:
    """What its history begins with: corpora, models from elsewhere."""
    artifacts = (node for node in graph.ancestors(digest) if node not in graph.runs)
    return [node for node in artifacts if not any(graph.inputs(run) for run in graph.parents(node))]


def _scores(tags: dict[str, str]) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, value in tags.items():
        if name.startswith(SCORE):
            try:
                found[name.removeprefix(SCORE)] = float(value)
            except ValueError:
                continue  # somebody else's tag
    return found


def _shown(versions: list[dict[str, Any]]) -> list[str]:
    """The metrics that versions have, those of most versions first."""
    counts = Counter(name for each in versions for name in each["scores"])
    return sorted(counts, key=lambda name: (-counts[name], name))[:MOST]


def _over_versions(versions: list[dict[str, Any]]) -> list[Any]:
    """The metrics from version to version."""
    drawn = []
    for name in _shown(versions):
        points = sorted((float(each["version"]), each["scores"][name]) for each in versions if name in each["scores"])
        if len(points) > 1:
            drawn.append(curves(name.replace("_", " "), {name: points}, unit="version").svg)
    return drawn
