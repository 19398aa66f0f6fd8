"""The difference between the histories of two artifacts: data, config, code, versions.

Stages are matched by title; repeated titles by their order.
"""

from collections import Counter
from dataclasses import dataclass

from sqlalchemy.engine import Connection

from infra.lineage import facts
from infra.lineage.graph import Graph


@dataclass(frozen=True)
class Pair:
    """One value in both histories; None where a history lacks it."""

    name: str
    a: str | None
    b: str | None

    @property
    def same(self) -> bool:
        return self.a == self.b


@dataclass(frozen=True)
class Difference:
    """The values that differ; `artifacts` has all of both histories, in topological order."""

    artifacts: list[Pair]  # stage -> digest of its output
    data: list[Pair]  # the same, for stages without inputs
    config: list[Pair]  # stage.field
    code: list[Pair]  # stage -> commit, and the digest of uncommitted changes
    versions: list[Pair]  # package

    @property
    def none(self) -> bool:
        return all(pair.same for pair in self.artifacts) and not (self.config or self.code or self.versions)


def difference(graph: Graph, connection: Connection, a: str, b: str) -> Difference:
    """Compare the histories of artifacts `a` and `b`. Raises UnknownNode."""
    ours, theirs = _history(graph, a), _history(graph, b)
    stages = list(dict.fromkeys([*ours, *theirs]))
    runs = {*ours.values(), *theirs.values()}
    tags, params = facts.tags(connection, runs), facts.params(connection, runs)

    def pairs(fields: dict[str, dict[str, str]]) -> list[Pair]:
        """The fields that differ, of stages that both histories have."""
        found = []
        for stage in stages:
            if stage in ours and stage in theirs:
                one, other = fields.get(ours[stage], {}), fields.get(theirs[stage], {})
                names = dict.fromkeys([*one, *other])
                found += [Pair(f"{stage}.{name}", one.get(name), other.get(name)) for name in names]
        return [pair for pair in found if not pair.same]

    def output(history: dict[str, str], stage: str) -> str | None:
        return graph.runs[history[stage]].output if stage in history else None

    artifacts = [Pair(stage, output(ours, stage), output(theirs, stage)) for stage in stages]
    first = {stage for history in (ours, theirs) for stage, run in history.items() if not graph.inputs(run)}
    return Difference(
        artifacts=artifacts,
        data=[pair for pair in artifacts if pair.name in first and not pair.same],
        config=pairs(params),
        code=_folded(pairs({run: {"code": _code(tags[run])} for run in runs}), ".code"),
        versions=_by_package(pairs({run: facts.group(tags[run], "version") for run in runs})),
    )


def _history(graph: Graph, artifact: str) -> dict[str, str]:
    """The upstream runs by title, in topological order."""
    found: dict[str, str] = {}
    seen: Counter[str] = Counter()
    for node in graph.in_order(graph.ancestors(artifact)):
        if node in graph.runs:
            title = graph.runs[node].title
            seen[title] += 1
            found[title if seen[title] == 1 else f"{title} {seen[title]}"] = node
    return found


def _code(tags: dict[str, str]) -> str:
    commit = tags.get("mlflow.source.git.commit", "unknown")
    return f"{commit} + {tags['baton.code.diff']}" if tags.get("baton.code.diff") else commit


def _folded(pairs: list[Pair], suffix: str) -> list[Pair]:
    """One row for all stages that differ in the same way."""
    by_change: dict[tuple[str | None, str | None], list[str]] = {}
    for pair in pairs:
        by_change.setdefault((pair.a, pair.b), []).append(pair.name.removesuffix(suffix))
    return [Pair(", ".join(names), *change) for change, names in by_change.items()]


def _by_package(pairs: list[Pair]) -> list[Pair]:
    found = {(pair.name.rpartition(".")[2], pair.a, pair.b): None for pair in pairs}
    return [Pair(*change) for change in found]
