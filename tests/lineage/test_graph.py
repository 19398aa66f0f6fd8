"""The edges of the lineage graph of recorded executions."""

from pathlib import Path

import pytest
from mlflow import MlflowClient
from starlette.testclient import TestClient

from baton.infra.drawing.graph import Artifact
from baton.infra.lineage.ancestry import Run
from baton.infra.lineage.api import Lineage
from baton.infra.lineage.app import alone
from baton.infra.lineage.graph import UnknownNode
from baton.infra.lineage.subgraph import of_execution
from baton.infra.tracking.execution import begin_execution, end_execution, flush
from baton.infra.tracking.record import note_cached, tracked
from tests.lineage.recorded import Stored, deliver


def names(nodes: list[Artifact | Run]) -> list[str]:
    return [node.name if isinstance(node, Artifact) else f"({node.title})" for node in nodes]


def test_the_ancestors_of_a_model_are_everything_upstream(lineage: Lineage, store: Stored) -> None:
    found = names(lineage.ancestors(store.digests["sft"]))
    assert found[0] == "(sft)"
    assert set(found) == {
        "corpus", "(corpus)", "tokenizer", "(tokenizer)", "shards", "(shards)", "pretrain", "(pretrain)", "base",
        "(convert)", "(sft)",
    }  # fmt: skip


def test_the_descendants_of_a_corpus_span_executions(lineage: Lineage, store: Stored) -> None:
    found = {node.digest for node in lineage.descendants(store.digests["corpus"]) if isinstance(node, Artifact)}
    assert found == (set(store.digests.values()) | set(store.others.values())) - {store.digests["corpus"]}


def test_a_cached_stage_is_in_its_execution_but_is_not_a_maker(lineage: Lineage, store: Stored) -> None:
    graph = lineage.graph.refresh()
    stages = {run.title: run for run in graph.stages(store.second)}
    assert stages["shards"].cached and stages["shards"].output == store.digests["shards"]
    maker = graph.maker(store.digests["shards"])
    assert maker and maker.execution == store.first
    assert [run.execution for run in graph.uses(store.digests["shards"])] == [store.first, store.second]


def test_a_failed_stage_is_in_the_graph_with_its_inputs(lineage: Lineage, store: Stored) -> None:
    graph = lineage.graph.refresh()
    (failed,) = [run for run in graph.stages(store.second) if run.title == "sft"]
    assert (failed.status, failed.output) == ("FAILED", None)
    assert failed.inputs == {"convert": store.others["convert"], "corpus": store.others["corpus"]}


def test_the_path_between_two_artifacts_has_every_route_in_topological_order(lineage: Lineage, store: Stored) -> None:
    found = names(lineage.path(store.digests["corpus"], store.digests["pretrain"]))
    assert found == ["corpus", "(tokenizer)", "tokenizer", "(shards)", "shards", "(pretrain)", "pretrain"]
    assert lineage.path(store.digests["pretrain"], store.digests["corpus"]) == lineage.path(
        store.digests["corpus"], store.digests["pretrain"]
    )
    assert lineage.path(store.digests["sft"], store.others["convert"]) == []


def test_a_digest_may_be_shortened(lineage: Lineage, store: Stored) -> None:
    assert lineage.ancestors(store.digests["sft"][:10]) == lineage.ancestors(store.digests["sft"])
    for unknown in ("abc", "0" * 64, ""):
        with pytest.raises(UnknownNode):
            lineage.ancestors(unknown)


def test_a_refresh_finds_new_runs(home: Path, tmp_path: Path) -> None:
    def push(id: str) -> None:
        end_execution()
        deliver(id)

    id = begin_execution("one", {})
    with tracked("corpus", tmp_path / "1", spec={}, inputs={}) as record:
        record.log_output("corpus", "a" * 64, {})
    push(id)
    lineage = Lineage()
    assert names(lineage.ancestors("a" * 64)) == ["(corpus)"]
    id = begin_execution("two", {})
    with tracked("shards", tmp_path / "2", spec={}, inputs={"corpus": "a" * 64}) as record:
        record.log_output("tokenized_corpus", "b" * 64, {})
    push(id)
    assert names(lineage.descendants("a" * 64)) == ["(shards)", "shards"]
    client = MlflowClient(f"sqlite:///{home / 'mlflow.db'}")
    (run,) = [run for run in lineage.graph.runs.values() if run.title == "shards"]
    client.delete_run(run.id)
    assert lineage.descendants("a" * 64) == []


def test_a_refresh_finds_the_outputs_of_a_running_execution(home: Path, tmp_path: Path) -> None:
    id = begin_execution("one", {})
    with tracked("corpus", tmp_path / "1", spec={}, inputs={}) as record:
        assert flush(60)
        lineage = Lineage()
        assert [run.live for run in lineage.graph.refresh().stages(id)] == [True]
        record.log_output("corpus", "a" * 64, {})
    assert flush(60)
    assert [run.output for run in lineage.graph.refresh().stages(id)] == ["a" * 64]


def made(record: dict[str, dict[str, str]], tmp_path: Path) -> str:
    """Record an execution with these stages, title -> inputs by name; returns its id. A digest is written as a letter,
    which is the first letter of the title unless `output` is set."""
    id = begin_execution("day", {})
    for title, inputs in record.items():
        kind = {"evaluate": "eval_report", "choose": "hf_model", "publish": "published_model"}.get(title, title)
        digests = {name: letter * 64 for name, letter in inputs.items() if name != "output"}
        with tracked(title, tmp_path / f"{title}-{id}", spec={}, inputs=digests) as stage:
            stage.log_output(kind, inputs.get("output", title[0]) * 64, {})
    end_execution()
    deliver(id)
    return id


def letters(nodes: list[Artifact | Run]) -> set[str]:
    return {node.digest[0] for node in nodes if isinstance(node, Artifact)}


def test_a_model_is_not_made_from_data_that_arrived_later(home: Path, tmp_path: Path) -> None:
    """The pruning of two days resulted in the same digest."""
    monday = {"corpus": {"output": "1"}, "prune": {"newest": "1"}, "train": {"data": "p", "output": "M"}}
    tuesday = {"corpus": {"output": "2"}, "prune": {"newest": "2"}, "train": {"data": "p", "more": "2", "output": "T"}}
    first, second = made(monday, tmp_path), made(tuesday, tmp_path)
    lineage = Lineage()
    assert letters(lineage.ancestors("M" * 64)) == {"1", "p"}
    assert letters(lineage.ancestors("T" * 64)) == {"2", "p"}
    assert letters(lineage.descendants("2" * 64)) == {"T"}
    assert letters(lineage.ancestors("p" * 64)) == {"1"}
    page = TestClient(alone())
    assert [each["digest"][0] for each in page.get(f"/lineage/artifacts/{'p' * 64}.json").json()["parents"]] == ["1"]
    uses = page.get(f"/lineage/artifacts/{'p' * 64}.json").json()["uses"]
    assert [(each["how"], each["execution"]["id"]) for each in uses] == [("made it", first), ("recomputed it", second)]


def test_choosing_a_model_does_not_make_it(home: Path, tmp_path: Path) -> None:
    """In earlier records, the chosen model was an output of the stage that chose it."""
    candidates = {"models.0": "b", "models.1": "s", "reports.0": "e"}
    id = made(
        {
            "base": {},
            "sft": {"model": "b"},
            "evaluate": {"model": "b"},
            "choose": candidates | {"output": "b"},
            "publish": {"model": "b", "models.0": "s", "reports.0": "e", "output": "P"},
        },
        tmp_path,
    )
    lineage = Lineage()
    assert lineage.ancestors("b" * 64) == [lineage.graph.maker("b" * 64)]
    assert letters(lineage.ancestors("P" * 64)) == {"b"}
    assert letters(lineage.descendants("s" * 64)) == set()
    page = TestClient(alone()).get(f"/lineage/artifacts/{'b' * 64}.json").json()
    assert page["parents"] == [] and [each["how"] for each in page["uses"]] == ["made it", "chose it"]
    assert {(each["digest"][0], each["relation"]) for each in page["children"]} == {
        ("s", "made from"), ("e", "measured"), ("P", "publishes"),
    }  # fmt: skip
    published = TestClient(alone()).get(f"/lineage/artifacts/{'P' * 64}.json").json()
    assert {(each["as"], each["relation"]) for each in published["parents"]} == {
        ("model", "publishes"), ("models.0", "describes"), ("reports.0", "describes"),
    }  # fmt: skip
    boxes = {box.key[0]: box for box in of_execution(lineage.graph, id) if box.key == box.artifact}
    assert [parent[0] for parent in boxes["P"].parents] == ["b"]


def test_a_recomputed_artifact_is_not_made_from_itself(home: Path, tmp_path: Path) -> None:
    """An artifact that was read before a run made it is older than all recorded runs."""
    made({"one": {"model": "t"}, "two": {"model": "o"}}, tmp_path)
    lineage = Lineage()
    assert letters(lineage.ancestors("t" * 64)) == set()
    assert letters(lineage.ancestors("o" * 64)) == {"t"}
    assert lineage.path("t" * 64, "o" * 64)


def test_a_cached_stage_without_inputs_shows_those_of_its_maker(home: Path, tmp_path: Path) -> None:
    id = begin_execution("one", {})
    with tracked("shards", tmp_path / "1", spec={}, inputs={"corpus": "a" * 64}) as record:
        record.log_output("tokenized_corpus", "b" * 64, {})
    note_cached("shards", "tokenized_corpus", "b" * 64, {})
    end_execution()
    deliver(id)
    graph = Lineage().graph.refresh()
    assert [graph.inputs(run.id) for run in graph.stages(id)] == [{"corpus": "a" * 64}] * 2
