"""All answers about ancestry agree with the manifests of the artifacts."""

import uuid
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy.engine import Connection

from baton.infra.drawing.graph import Box
from baton.infra.lineage.ancestry import Ancestry, Run
from baton.infra.lineage.database import open_database
from baton.infra.lineage.graph import Graph
from baton.infra.lineage.openlineage import events
from baton.infra.lineage.subgraph import MOST, of_artifact, of_execution
from tests.lineage.histories import History, history

HISTORIES = st.builds(history, st.integers(0, 10**9))
STORE: list[Connection] = []
Version = tuple[str, str]  # a version of a dataset: its digest, and the UUID of the run that made it


@pytest.fixture(scope="module", autouse=True)
def nothing(empty_store: Path) -> Iterator[None]:
    """A store without runs, since this module builds its graphs directly."""
    with open_database(f"sqlite:///{empty_store}").connect() as connection:
        STORE.append(connection)
        yield
    STORE.clear()


def graph_of(past: History) -> Graph:
    graph = Graph(STORE[0].engine)
    graph.connect(past.runs, {})
    return graph


def artifacts(nodes: Iterable[str], runs: dict[str, Run]) -> set[str]:
    return {node for node in nodes if node not in runs}


@settings(max_examples=200, deadline=None)
@given(past=HISTORIES)
def test_ancestors_are_those_of_the_manifests(past: History) -> None:
    known = Ancestry(past.runs)
    for folder in past.first.values():
        assert known.maker(folder.digest) == folder.maker
        assert artifacts(known.ancestors(folder.digest), past.runs) == folder.truth() - {folder.digest}
    for folder in past.folders:
        assert artifacts(known.ancestors(folder.maker), past.runs) == folder.truth()


@settings(max_examples=100, deadline=None)
@given(past=HISTORIES)
def test_ancestors_are_older_and_no_artifact_is_made_from_itself(past: History) -> None:
    known = Ancestry(past.runs)
    for digest in past.first:
        assert digest not in known.ancestors(digest)
    for run in past.runs.values():
        older = [past.runs[node] for node in known.ancestors(run.id) if node in past.runs]
        assert all((other.started, other.ended) < (run.started, run.ended) for other in older)
        assert not [other for other in older if other.cached or other.handed_on]
        assert known.in_order([run.id, *(other.id for other in older)])[-1] == run.id


@settings(max_examples=100, deadline=None)
@given(past=HISTORIES)
def test_descendants_and_paths_are_the_same_edges_the_other_way(past: History) -> None:
    known = Ancestry(past.runs)
    above = {digest: artifacts(known.ancestors(digest), past.runs) for digest in past.first}
    for a, of_a in above.items():
        below = artifacts(known.descendants(a), past.runs)
        assert below & above.keys() == {b for b, of_b in above.items() if a in of_b}
        for b, of_b in above.items():
            path = known.path(a, b)
            assert bool(path) == (a == b or a in of_b or b in of_a)
            assert artifacts(path, past.runs) - {a, b} <= (of_b if a in of_b else of_a)


@settings(max_examples=100, deadline=None)
@given(past=HISTORIES)
def test_openlineage_has_the_same_ancestors(past: History) -> None:
    """A version of a dataset is the output of a run; a reader of the events follows versions from outputs to inputs."""
    graph = graph_of(past)
    made_from: dict[Version, list[Version]] = {}
    for event in events(graph, STORE[0], past.runs):
        for made in event["outputs"]:
            made_from[version(made)] = [version(each) for each in event["inputs"]]
    for digest, folder in past.first.items():
        found, waiting = set[Version](), [(digest, str(uuid.UUID(folder.maker)))]
        while waiting:
            above = [parent for parent in made_from[waiting.pop()] if parent not in found]
            found.update(above)
            waiting += above
        assert {name for name, _ in found} == folder.truth() - {digest}
        of_one = events(graph, STORE[0], graph.ancestry.history(digest))
        assert {each["name"] for event in of_one for each in event["inputs"]} == folder.truth() - {digest}


def version(dataset: dict[str, Any]) -> Version:
    return dataset["name"], dataset["facets"]["version"]["datasetVersion"]


@settings(max_examples=100, deadline=None)
@given(past=HISTORIES)
def test_drawings_show_the_same_ancestors(past: History) -> None:
    graph = graph_of(past)
    for folder in past.first.values():
        boxes = of_artifact(graph, folder.digest, opened=[*past.first, *past.runs], limit=MOST)
        assert _above(boxes, folder.digest) == folder.truth() - {folder.digest}
    for execution in {run.execution for run in past.runs.values()}:
        for box in of_execution(graph, execution, opened=[*past.first, *past.runs]):
            origins = graph.ancestry.origins(box.runs[0]) if box.runs else {}
            assert len(box.parents) == len(origins)
            assert not (box.runs and graph.runs[box.runs[0]].handed_on and box.parents)


def _above(boxes: list[Box], focus: str) -> set[str]:
    by_key, found, waiting = {box.key: box for box in boxes}, set[str](), [focus]
    while waiting:
        for parent in by_key[waiting.pop()].parents:
            if parent not in found:
                found.add(parent)
                waiting.append(parent)
    return {artifact for key in found if (artifact := by_key[key].artifact)}


@settings(max_examples=100, deadline=None)
@given(past=HISTORIES, late=st.floats(-100, 100))
def test_a_machine_with_another_clock_loses_no_ancestor(past: History, late: float) -> None:
    """If every second stage of an execution ran on a machine with a wrong clock, the inputs that its stages read from
    each other are still known."""
    name = "e0"
    runs = [run for run in past.runs.values() if run.execution == name and not run.handed_on]
    wrong = {run.id for run in sorted(runs, key=lambda run: run.started)[::2]}
    shifted = {
        run.id: replace(run, started=run.started + late, ended=(run.ended or 0) + late) if run.id in wrong else run
        for run in runs
    }
    known = Ancestry(shifted)
    outputs = {run.output for run in runs}
    for run in runs:
        found = known.ancestors(run.id)
        assert run.id not in found
        if len({other.output for other in runs}) == len(runs):  # otherwise it may be taken for a recomputed one
            assert all(origin for digest, origin in known.origins(run.id).items() if digest in outputs)
