"""One search over everything that the pages show: executions, registered models and artifacts.

A query has words, which all have to match, each in one of these ways:

    field=value     a field of the recipe, of any stage's spec, or of the stage whose title comes first: sft.steps=400;
                    or a tag of an execution
    a digest        its first characters, 4 or more; those of a commit likewise
    any text        part of the name of a recipe, a stage, a model or a file, of an id, of a value of a recipe such as a
                    path, of a person, a note, a tag, or of an artifact's kind and facts, in any case
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy.engine import Connection

from baton.infra.lineage import facts, files
from baton.infra.lineage.artifacts import describe
from baton.infra.lineage.graph import Execution, Graph
from baton.infra.lineage.summaries import Row, artifact_row, execution_link, execution_rows

MOST = 25  # of each kind on the page
SHORTEST_PREFIX = 4  # characters of a digest
SHORTEST_TEXT = 3  # characters of a word that is looked for in values
HEX = frozenset("0123456789abcdef")


@dataclass(frozen=True)
class Matches:
    """What matches a word: MLflow's ids of stages and executions, and artifacts by digest."""

    word: str
    runs: set[str]
    artifacts: set[str]

    def executions(self, graph: Graph) -> set[str]:
        """Return the ids of the executions that match: by themselves, by a stage, or by an artifact of a stage."""
        found = {graph.runs[run].execution for run in self.runs & graph.runs.keys()}
        if self.artifacts:
            found |= {
                run.execution
                for run in graph.runs.values()
                if run.output in self.artifacts or not self.artifacts.isdisjoint(run.inputs.values())
            }
        return found | {each.id for each in graph.executions.values() if self.of_execution(each)}

    def of_execution(self, execution: Execution) -> bool:
        """Return whether an execution matches by itself."""
        return execution.run_id in self.runs or self.word.lower() in f"{execution.name} {execution.id}".lower()

    def of_artifacts(self, graph: Graph) -> set[str]:
        """Return the artifacts that match: by themselves, or by the run that made them."""
        made = {graph.runs[run].output for run in self.runs & graph.runs.keys()}
        return self.artifacts | {digest for digest in made if digest}


def matches(graph: Graph, connection: Connection, word: str) -> Matches:
    """Return what matches one word."""
    field, equals, value = word.partition("=")
    if equals:
        runs = facts.with_param(connection, field, value) | facts.annotated(connection, value.lower(), field)
        for title in {run.title for run in graph.runs.values() if field.startswith(f"{run.title}.")}:
            of_any = facts.with_param(connection, field.removeprefix(f"{title}."), value)
            runs |= {run for run in of_any if run in graph.runs and graph.runs[run].title == title}
        return Matches(word, runs, set())
    text = word.lower()
    is_prefix = len(text) >= SHORTEST_PREFIX and set(text) <= HEX
    runs = facts.with_tag(connection, "mlflow.source.git.commit", text, prefix=True) if is_prefix else set()
    is_text = len(text) >= SHORTEST_TEXT  # names of models are among the values
    runs |= facts.mentioning(connection, text) if is_text else facts.naming_models(connection, text)
    runs |= facts.annotated(connection, text)
    runs |= {run.id for run in graph.runs.values() if text in run.title.lower() or text in (run.kind or "")}
    named = files.naming(text) if "." in text.strip(".") else set()
    artifacts = {digest for digest in named if graph.is_artifact(digest)}
    return Matches(word, runs, artifacts | (graph.beginning_with(text) if is_prefix else set()))


def results(graph: Graph, connection: Connection, words: Sequence[str]) -> dict[str, Any]:
    """Return the newest executions, registered versions and artifacts that match all words, and how many there are.
    At least one word has to match an artifact itself; others may match its execution."""
    found = [matches(graph, connection, word) for word in dict.fromkeys(words)]
    executions = [each.executions(graph) for each in found]
    ids = set.intersection(*executions) if executions else set()
    listed = [each for each in graph.executions.values() if each.id in ids]
    listed.sort(key=lambda each: (each.started, each.id), reverse=True)
    artifacts = _artifacts(graph, found)
    models = _models(connection, found, artifacts)
    shown = artifacts[:MOST]
    named = describe(graph, connection, shown)
    return {
        "executions": execution_rows(graph, connection, listed[:MOST]),
        "models": models[:MOST],
        "artifacts": [_artifact(graph, named[digest]) for digest in shown],
        "matching": {"executions": len(listed), "models": len(models), "artifacts": len(artifacts)},
    }


def _artifacts(graph: Graph, found: Sequence[Matches]) -> list[str]:
    """Return the digests of the artifacts that match, newest first."""
    own = [each.of_artifacts(graph) for each in found]
    executions = [{one.id for one in graph.executions.values() if each.of_execution(one)} for each in found]
    makers = {digest: graph.maker(digest) for digest in set[str]().union(*own)}

    def matches_all(digest: str) -> bool:
        maker = makers[digest]
        of = maker.execution if maker else ""
        return all(digest in some or of in ids for some, ids in zip(own, executions, strict=True))

    matching = [digest for digest in makers if matches_all(digest)]

    def made(digest: str) -> tuple[float, str]:
        maker = makers[digest]
        return (maker.started if maker else 0.0, digest)

    return sorted(matching, key=made, reverse=True)


def _models(connection: Connection, found: Sequence[Matches], artifacts: Sequence[str]) -> list[Row]:
    """Return the registered versions whose name, number, alias or description matches, or whose model does."""
    matching, rows = {*artifacts}, []
    for version in facts.versions(connection):
        digest = version["tags"].get("baton.model", "")
        text = f"{version['name']} {version['version']} {' '.join(version['aliases'])} {version['description']}".lower()
        if digest in matching or all(each.word.lower() in text for each in found):
            rows.append({name: version[name] for name in ("name", "version", "when", "aliases")} | {"digest": digest})
    return rows


def _artifact(graph: Graph, artifact: Any) -> Row:
    maker = graph.maker(artifact.digest)
    execution = execution_link(graph, maker.execution) if maker else None
    return artifact_row(artifact) | {"execution": execution, "when": maker.started if maker else None}
