"""The part of a large graph that is drawn."""

from pathlib import Path

import pytest

from baton.infra.lineage.ancestry import Run
from baton.infra.lineage.database import open_database
from baton.infra.lineage.graph import Graph
from baton.infra.lineage.subgraph import of_artifact, of_execution
from tests.lineage.many import SWEEP, Made, fill

EXECUTIONS = 30


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory, empty_store: Path) -> tuple[Graph, Made]:
    path = tmp_path_factory.mktemp("many") / "mlflow.db"
    path.write_bytes(empty_store.read_bytes())
    made = fill(f"sqlite:///{path}", EXECUTIONS)
    return Graph(open_database(f"sqlite:///{path}")).refresh(), made


def test_the_rows_in_bulk_are_the_rows_of_the_recording_api(many: tuple[Graph, Made]) -> None:
    graph, made = many
    assert len(graph.executions) == EXECUTIONS + 1
    assert all(graph.is_artifact(digest) for digest in made.artifacts)
    stages = {run.title: run for run in graph.stages(made.executions[1])}
    assert stages["corpus"].cached and not stages["sft"].cached


@pytest.mark.parametrize("numbered", [False, True])
def test_many_children_of_a_kind_are_folded_and_open_on_demand(many: tuple[Graph, Made], numbered: bool) -> None:
    graph = Graph(many[0].engine)
    base, run = {"model": "base"}, Run("0", "convert", "FINISHED", 0.0, 1.0, "e", output="base")
    titles = [f"sft-{number}" if numbered else "sft" for number in range(1, 10)]
    tuned = [
        Run(str(n), title, "FINISHED", n, n, "e", output=f"sft{n}", inputs=base) for n, title in enumerate(titles, 1)
    ]
    graph.connect({each.id: each for each in [run, *tuned]}, {})
    boxes = {box.key: box for box in of_artifact(graph, "base")}
    assert list(boxes) == ["base", "sft7", "sft8", "sft9", "fold:down:base:sft"]
    assert boxes["fold:down:base:sft"].folded == 6
    assert len(of_artifact(graph, "base", opened=["base"])) == 10
    assert {box.key for box in of_execution(graph, "e")} == set(boxes)


def test_beyond_the_limit_relatives_are_counted_not_drawn(many: tuple[Graph, Made]) -> None:
    graph, made = many
    first = graph.stages(made.large)[0].output
    assert first is not None
    boxes = of_artifact(graph, first, limit=20)
    assert sum(not box.folded for box in boxes) <= 20
    assert sum(box.folded for box in boxes) > 0
    everything = of_artifact(graph, first, opened=[*graph.ancestry.descendants(first), first], limit=300)
    assert len(everything) == SWEEP


def test_a_large_execution_has_all_its_stages(many: tuple[Graph, Made]) -> None:
    graph, made = many
    assert len(of_execution(graph, made.large)) == SWEEP
    few = of_execution(graph, made.large, limit=50)
    assert len(few) == 51
    assert few[-1].folded == SWEEP - 50
