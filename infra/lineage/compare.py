"""Two models side by side: what differs in their histories, their scores, their curves over each other."""

from dataclasses import asdict
from typing import Any

from sqlalchemy.engine import Connection

from infra.charts import Points, curves
from infra.lineage import facts
from infra.lineage.artifacts import Artifact, describe
from infra.lineage.diff import difference
from infra.lineage.graph import Graph, Run
from infra.lineage.lines import artifact_line, execution_line, findings

CHOICES = 200  # the newest models, in the list to choose from


def comparison(graph: Graph, connection: Connection, a: str, b: str) -> dict[str, Any]:
    """Of any two artifacts. Raises UnknownNode."""
    named = describe(graph, connection, [a, b])
    found = difference(graph, connection, a, b)
    (of_a, units_a), (of_b, units_b) = _scores(graph, connection, a), _scores(graph, connection, b)
    units = units_a | units_b
    lines_a, lines_b = _curves(graph, connection, a, b), _curves(graph, connection, b, a)
    title_a, title_b = _title(named[a], named[b]), _title(named[b], named[a])
    both = {name: {"a": lines_a[name], "b": lines_b[name]} for name in lines_a if name in lines_b}
    told = asdict(found)
    return {
        "title": f"{title_a} and {title_b}",
        "a": artifact_line(named[a]) | {"title": title_a},
        "b": artifact_line(named[b]) | {"title": title_b},
        "difference": told,
        "only": [pair for pair in told["artifacts"] if None in (pair["a"], pair["b"])],
        "same": found.none,
        "metrics": [
            {"name": name, "a": of_a.get(name), "b": of_b.get(name), "unit": units.get(name, "")}
            for name in of_a | of_b
        ],
        "curves": both,
        "_curves": [curves(name, {title_a: each["a"], title_b: each["b"]}).svg for name, each in both.items()],
    }


def choices(graph: Graph, connection: Connection) -> list[dict[str, Any]]:
    """The newest models."""
    known = facts.with_tag(connection, "baton.output.kind", "hf_model")
    made: dict[str, Run] = {}
    for run in sorted((graph.runs[id] for id in known if id in graph.runs), key=lambda run: -run.started):
        if run.output:
            made[run.output] = run  # the oldest that made it, at last
    newest = list(made)[:CHOICES]
    named = describe(graph, connection, newest)
    return [
        artifact_line(named[digest])
        | {"execution": execution_line(graph, made[digest].execution), "when": made[digest].started}
        for digest in newest
    ]


def _title(one: Artifact, other: Artifact) -> str:
    return one.name if one.name != other.name else f"{one.name} {one.digest[:6]}"


def _scores(graph: Graph, connection: Connection, digest: str) -> tuple[dict[str, float], dict[str, str]]:
    """The metrics of its evaluations, and their units."""
    found: dict[str, float] = {}
    units: dict[str, str] = {}
    for finding in findings(graph, connection, digest):
        if finding["kind"] == "eval_report":
            found |= finding["facts"]
            units |= finding["units"]
    return found, units


def _curves(graph: Graph, connection: Connection, digest: str, other: str) -> dict[str, Points]:
    """The curves of the stages that it comes from and the other does not, each by stage and metric."""
    found: dict[str, Points] = {}
    shared = set(graph.ancestors(other))
    for node in graph.in_order(graph.ancestors(digest)):
        if node in graph.runs and node not in shared:
            for name, points in facts.curves(connection, node).items():
                found[f"{graph.runs[node].title} {name}"] = points
    return found
