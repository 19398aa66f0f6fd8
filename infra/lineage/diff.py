"""The difference between the histories of two artifacts: data, config, functions, code, versions.

Stages are matched by title; repeated titles by their order.
"""

import difflib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy.engine import Connection

from baton.infra.lineage import code, facts, files
from baton.infra.lineage.graph import Graph
from baton.infra.tracking.flatten import flatten

CONTEXT = 3  # unchanged lines around a change
MOST_LINES = 2000  # limit for the difference of one file


@dataclass(frozen=True)
class Compared:
    """One value in both histories; None where a history lacks it."""

    name: str
    a: str | None
    b: str | None

    @property
    def same(self) -> bool:
        return self.a == self.b


@dataclass(frozen=True)
class Changed:
    """A file of the user's functions that differs: `lines` of a unified diff, without its header."""

    name: str  # file: the stages that have it
    lines: list[str]


@dataclass(frozen=True)
class Difference:
    """The values that differ; `artifacts` has all artifacts of both histories, in topological order."""

    artifacts: list[Compared]  # stage -> digest of its output
    data: list[Compared]  # the same, for stages that import content
    config: list[Compared]  # stage.field
    functions: list[Changed]
    code: list[Compared]  # stage -> commit, and the digest of uncommitted changes
    versions: list[Compared]  # package

    @property
    def none(self) -> bool:
        return all(pair.same for pair in self.artifacts) and not (
            self.config or self.functions or self.code or self.versions
        )


def difference(graph: Graph, connection: Connection, a: str, b: str) -> Difference:
    """Compare the histories of artifacts `a` and `b`. Raises UnknownNode."""
    runs_a, runs_b = _history(graph, a), _history(graph, b)
    stages = list(dict.fromkeys([*runs_a, *runs_b]))
    runs = {*runs_a.values(), *runs_b.values()}
    tags = facts.tags(connection, runs)
    params = facts.params(connection, runs)
    params_of = {run: code.split(_params(graph, run, tags.get(run, {}), params.get(run, {}))) for run in runs}

    def pairs(fields: dict[str, dict[str, str]]) -> list[Compared]:
        """The fields that differ, of stages that both histories have."""
        compared = []
        for stage in stages:
            if stage in runs_a and stage in runs_b:
                one, other = fields.get(runs_a[stage], {}), fields.get(runs_b[stage], {})
                names = dict.fromkeys([*one, *other])
                compared += [Compared(f"{stage}.{name}", one.get(name), other.get(name)) for name in names]
        return [pair for pair in compared if not pair.same]

    def output(history: dict[str, str], stage: str) -> str | None:
        return graph.runs[history[stage]].output if stage in history else None

    artifacts = [Compared(stage, output(runs_a, stage), output(runs_b, stage)) for stage in stages]
    first = {stage for history in (runs_a, runs_b) for stage, run in history.items() if not graph.runs[run].content}
    return Difference(
        artifacts=artifacts,
        data=[pair for pair in artifacts if pair.name in first and not pair.same],
        config=pairs({run: settings for run, (settings, _) in params_of.items()}),
        functions=_changed(
            [(stage, params_of[runs_a[stage]][1], params_of[runs_b[stage]][1]) for stage in runs_a if stage in runs_b]
        ),
        code=_folded(pairs({run: {"code": _code(tags[run])} for run in runs}), ".code"),
        versions=_by_package(pairs({run: facts.group(tags[run], "version") for run in runs})),
    )


def _history(graph: Graph, artifact: str) -> dict[str, str]:
    """The upstream runs by title, in topological order."""
    runs: dict[str, str] = {}
    seen: Counter[str] = Counter()
    for run in graph.ancestry.history(artifact):
        title = graph.runs[run].title
        seen[title] += 1
        runs[title if seen[title] == 1 else f"{title} {seen[title]}"] = run
    return runs


def _params(graph: Graph, run: str, tags: dict[str, str], recorded: dict[str, str]) -> dict[str, str]:
    """A stage's parameters, from its artifact's manifest if that is at hand, since MLflow cuts long ones."""
    spec = files.spec_of(tags.get("baton.job"), graph.runs[run].output or "")
    return recorded if spec is None else flatten(spec)


def _changed(stages: list[tuple[str, Mapping[str, str], Mapping[str, str]]]) -> list[Changed]:
    """Each file that differs between the two texts of some stages, once for all stages with the same change."""
    changes: dict[tuple[str, str, str], list[str]] = {}
    for stage, texts_a, texts_b in stages:
        for file in dict.fromkeys([*texts_a, *texts_b]):
            one, other = texts_a.get(file, ""), texts_b.get(file, "")
            if one != other:
                changes.setdefault((file, one, other), []).append(stage)
    return [
        Changed(f"{file}: {', '.join(titles)}", _lines(one, other)) for (file, one, other), titles in changes.items()
    ]


def _lines(one: str, other: str) -> list[str]:
    lines = difflib.unified_diff(one.splitlines(), other.splitlines(), n=CONTEXT, lineterm="")
    return list(lines)[2 : 2 + MOST_LINES]


def _code(tags: dict[str, str]) -> str:
    commit = tags.get("mlflow.source.git.commit", "unknown")
    return f"{commit} + {tags['baton.code.diff']}" if tags.get("baton.code.diff") else commit


def _folded(pairs: list[Compared], suffix: str) -> list[Compared]:
    """One row for all stages that differ in the same way."""
    by_change: dict[tuple[str | None, str | None], list[str]] = {}
    for pair in pairs:
        by_change.setdefault((pair.a, pair.b), []).append(pair.name.removesuffix(suffix))
    return [Compared(", ".join(names), *change) for change, names in by_change.items()]


def _by_package(pairs: list[Compared]) -> list[Compared]:
    changes = {(pair.name.rpartition(".")[2], pair.a, pair.b): None for pair in pairs}
    return [Compared(*change) for change in changes]
