"""The edges of the lineage graph, from recorded executions."""

from pathlib import Path

import pytest
from mlflow import MlflowClient

from infra.lineage.api import Lineage
from infra.lineage.artifacts import Artifact
from infra.lineage.graph import Run, UnknownNode
from infra.tracking.execution import begin_execution, end_execution, flush, note_cached
from infra.tracking.record import tracked
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
    (maker,) = graph.parents(store.digests["shards"])
    assert graph.runs[maker].execution == store.first
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
        record.made("corpus", "a" * 64, {})
    push(id)
    lineage = Lineage()
    assert names(lineage.ancestors("a" * 64)) == ["(corpus)"]
    id = begin_execution("two", {})
    with tracked("shards", tmp_path / "2", spec={}, inputs={"corpus": "a" * 64}) as record:
        record.made("tokenized_corpus", "b" * 64, {})
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
        record.made("corpus", "a" * 64, {})
    assert flush(60)
    assert [run.output for run in lineage.graph.refresh().stages(id)] == ["a" * 64]


def test_an_artifact_has_one_maker_for_each_set_of_inputs(home: Path, tmp_path: Path) -> None:
    for number, parent in enumerate(("a", "a", "c")):
        id = begin_execution("one", {})
        with tracked("shards", tmp_path / str(number), spec={}, inputs={"corpus": parent * 64}) as record:
            record.made("tokenized_corpus", "b" * 64, {})
        end_execution()
        deliver(id)
    graph = Lineage().graph.refresh()
    assert len(graph.parents("b" * 64)) == 2
    assert len(graph.uses("b" * 64)) == 3


def test_a_cycle_of_equal_contents_ends(home: Path, tmp_path: Path) -> None:
    id = begin_execution("one", {})
    for number, (read, made) in enumerate((("a", "b"), ("b", "a"))):
        with tracked("load_hf", tmp_path / str(number), spec={}, inputs={"model": read * 64}) as record:
            record.made("hf_model", made * 64, {})
    end_execution()
    deliver(id)
    lineage = Lineage()
    assert len(lineage.ancestors("a" * 64)) == 3
    assert {node.digest[0] for node in lineage.path("a" * 64, "b" * 64) if isinstance(node, Artifact)} == {"a", "b"}


def test_a_cached_stage_without_inputs_shows_those_of_its_maker(home: Path, tmp_path: Path) -> None:
    id = begin_execution("one", {})
    with tracked("shards", tmp_path / "1", spec={}, inputs={"corpus": "a" * 64}) as record:
        record.made("tokenized_corpus", "b" * 64, {})
    note_cached("shards", "tokenized_corpus", "b" * 64, {})
    end_execution()
    deliver(id)
    graph = Lineage().graph.refresh()
    assert [graph.inputs(run.id) for run in graph.stages(id)] == [{"corpus": "a" * 64}] * 2
