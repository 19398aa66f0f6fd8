"""Text → tokenizer → shards → pretraining → model, with each stage in a separate pod that shares no files."""

from pathlib import Path
from typing import Any

import mlflow as mlflow_client
import pytest

from baton.infra.tracking.code import code_version
from tests.cluster.chain import (
    BASE,
    CORPUS,
    KINDS,
    STAGES,
    Disturbed,
    baton,
    digests,
    folder_of,
    forget,
    lose,
    manifests,
    recorded,
    submit,
    training,
    whole,
)
from tests.cluster.client import DIGEST, Client
from tests.cluster.pod import Pod
from tests.cluster.propeller import Cluster, Done
from tests.source import copy
from tests.tracking.conftest import Server
from tests.workflows.test_five_days import RECIPE

pytestmark = pytest.mark.long

PAGES = "http://lineage.example"


@pytest.fixture(scope="module")
def submitted(tracked: Cluster, client: Client, mlflow: Server) -> Any:
    return submit(client, BASE, MLFLOW_TRACKING_URI=mlflow.uri, BATON_LINEAGE=PAGES)


@pytest.fixture(scope="module")
def run(tracked: Cluster, submitted: Any) -> Done:
    done = tracked.execute(submitted)
    assert done.failed is None, done.why()
    return done


def test_every_stage_runs_in_a_pod_of_its_own(run: Done) -> None:
    assert run.made() == ["stages", *STAGES, "report"]


def test_what_the_stages_made_is_in_storage_by_its_digest(tracked: Cluster, run: Done) -> None:
    storage = tracked.storage
    assert {kind for kind, _ in digests(storage)} == {*KINDS} - {"eval_report", "rows"}
    for manifest in manifests(storage):
        there = f"{folder_of(storage, manifest)}/"
        assert {uri.removeprefix(there) for uri in storage.list(there)} >= manifest["files"].keys()


def test_no_pod_computes_an_image_s_tag(run: Done) -> None:
    assert {each.asked.image for each in run.ran} == {
        f"registry.example/baton-data@{DIGEST}",
        f"registry.example/baton-train@{DIGEST}",
    }


def test_the_pretraining_asks_for_what_it_needs(run: Done) -> None:
    (pretrain,) = run.of("pretrain")
    assert {"cpu", "memory"} <= pretrain.asked.requests.keys()


def execution(run: Done, mlflow: Server) -> tuple[Any, list[Any]]:
    """Return an execution in MLflow and its stages."""
    found = mlflow_client.MlflowClient(mlflow.uri)
    (experiment,) = [each for each in found.search_experiments() if each.name != "Default"]
    runs = found.search_runs([experiment.experiment_id])
    mine = [each for each in runs if run.name in each.data.tags["baton.execution"]]
    (parent,) = [each for each in mine if each.data.tags["baton.role"] == "execution"]
    return parent, [each for each in mine if each.data.tags.get("mlflow.parentRunId") == parent.info.run_id]


def children(run: Done, mlflow: Server) -> dict[str, Any]:
    """Return the stages of a successful execution by name."""
    parent, stages = execution(run, mlflow)
    assert parent.info.status == "FINISHED"
    by_name = {each.data.tags["mlflow.runName"]: each for each in stages}
    assert len(by_name) == len(stages)  # each stage occurs once
    return by_name


def test_the_execution_is_one_execution_in_mlflow(run: Done, mlflow: Server) -> None:
    stages = children(run, mlflow)
    assert sorted(stages) == ["convert", "corpus", "pretrain", "report", "shards", "tokenizer"]
    assert {each.info.status for each in stages.values()} == {"FINISHED"}
    assert {each.data.tags["baton.cached"] for each in stages.values()} == {"false"}


def test_flyte_s_page_and_the_lineage_page_link_to_each_other(tracked: Cluster, run: Done, mlflow: Server) -> None:
    storage, (parent, _) = tracked.storage, execution(run, mlflow)
    decks = [storage.get(uri) or b"" for uri in storage.list(f"{storage.root}/") if uri.endswith("/deck.html")]
    link = f'href="{PAGES}/lineage/executions/{parent.data.tags["baton.execution"]}"'
    assert len([deck for deck in decks if link in deck.decode()]) == len([*STAGES, "report"])
    assert parent.data.tags["baton.link.Flyte"].startswith(f"http://{tracked.address}/console/projects/flytesnacks/")


def test_a_pod_ends_quietly(run: Done) -> None:
    noise = ("Unclosed client session", "Exception ignored", "Traceback")
    assert not [(each.task, word) for each in run.ran for word in noise if word in each.said]


def test_pods_record_the_client_s_commit_and_what_its_recipe_says(run: Done, mlflow: Server) -> None:
    """The pods do not record the name of the code archive, nor the resources that the plan gives to pods."""
    parent, stages = execution(run, mlflow)
    commit = code_version()["commit"]
    assert {each.data.tags["mlflow.source.git.commit"] for each in [parent, *stages]} == {commit}
    assert {each.data.tags["baton.code.archive"][:4] for each in stages} == {"fast"}
    settings = [name for name in parent.data.tags if name.startswith("baton.setting.")]
    assert settings and not [name for name in settings if ".pod" in name]


@pytest.fixture(scope="module")
def again(tracked: Cluster, client: Client, run: Done, submitted: Any) -> Done:
    done = tracked.execute(client.again(submitted))
    assert done.failed is None, done.why()
    return done


def test_the_same_again_is_served_from_the_catalog(again: Done) -> None:
    assert again.made() == ["stages", "report"]


def test_stages_that_had_no_pod_are_in_the_execution_too(run: Done, again: Done, mlflow: Server) -> None:
    made, served = children(run, mlflow), children(again, mlflow)
    assert served.keys() == made.keys()
    assert {name for name, each in served.items() if each.data.tags["baton.cached"] == "true"} == {
        *("convert", "corpus", "pretrain", "shards", "tokenizer")
    }
    assert {each.info.status for each in served.values()} == {"FINISHED"}
    cached = sorted(served.keys() - {"report"}, key=lambda name: int(served[name].info.start_time))
    assert cached == ["corpus", "tokenizer", "shards", "pretrain", "convert"]
    for name in cached:
        assert served[name].data.tags["baton.output"] == made[name].data.tags["baton.output"]


def test_cached_stages_are_in_an_execution_that_fails_before_its_report(
    tracked: Cluster, client: Client, run: Done, mlflow: Server, tmp_path: Path
) -> None:
    failing = tmp_path / "failing.py"
    failing.write_text(
        "from pydantic import BaseModel\n\nclass Empty(BaseModel): ...\n\n"
        "def stage(spec: Empty, inputs, output, job):\n    raise ValueError('no')\n"
    )
    recipe = BASE | {"stages": [{"name": "failing", "stage": f"{failing}:stage", "inputs": ["base"]}]}
    done = tracked.execute(submit(client, recipe, MLFLOW_TRACKING_URI=mlflow.uri))
    assert "ValueError: no (failing.py, line 6: raise ValueError('no'))" in str(done.failed)
    _, stages = execution(done, mlflow)
    cached = [each.data.tags["mlflow.runName"] for each in stages if each.data.tags["baton.cached"] == "true"]
    assert sorted(cached) == ["convert", "corpus", "pretrain", "shards", "tokenizer"]


@pytest.fixture
def described_otherwise(tmp_path: Path) -> Path:
    """The product in another folder, with another description of a field."""
    copy(tmp_path, "images", "infra", "tasks", "workflows")
    spec = tmp_path / "tasks/pretrain/spec.py"
    text = spec.read_text()
    spec.write_text(text.replace('"Optimizer steps"', '"Steps of the optimizer"'))
    assert spec.read_text() != text
    return tmp_path


def test_another_layout_placement_or_description_is_a_hit(
    tracked: Cluster, client: Client, run: Done, mlflow: Server, described_otherwise: Path
) -> None:
    """A placed stage would need a connector, which this cluster does not have."""
    placed = {"placement": {"infra": ["aws"]}}
    layout = {"layout": BASE["pretrain"]["layout"] | {"micro_batch": 4}}
    changed = BASE | {"shards": placed, "pretrain": BASE["pretrain"] | layout, "convert": placed}
    done = tracked.execute(submit(client, changed, described_otherwise, MLFLOW_TRACKING_URI=mlflow.uri))
    assert done.failed is None, done.why()
    assert done.made() == ["stages", "report"]


@pytest.fixture(scope="module")
def before(tracked: Cluster, run: Done) -> set[tuple[str, str]]:
    """The digests of the artifacts of an undisturbed run."""
    return digests(tracked.storage)


@pytest.fixture(scope="module")
def disturbed(tracked: Cluster, client: Client, before: Any, submitted: Any) -> tuple[Done, Disturbed]:
    """Pretraining and conversion run again: the first is killed once, and the storage of the second is slow, refuses
    requests and closes connections. The storage already has half of the output of an earlier pod, a checkpoint and the
    artifact."""
    (model,) = [each for each in manifests(tracked.storage) if each["kind"] == "hf_model"]
    (done,) = [uri for uri in tracked.storage.list(f"{baton(tracked.storage)}/jobs/pretrain-") if "result" in uri]
    half = [
        f"{folder_of(tracked.storage, model)}/model.safetensors",
        done.replace("result.json", "work/checkpoints/step-00000190/00/common.pt"),
    ]
    forget(tracked, "pretrain", "pretrain", "megatron_checkpoint")
    forget(tracked, "convert", "convert", "hf_model")
    for place in half:
        tracked.storage.put(place, b"half")
    kill = Disturbed(tracked.storage, "pretrain", Pod.kill)

    def watch(pod: Any) -> None:
        if pod.task == "convert":
            faults.about, faults.refused, faults.cut, faults.delay_s = "(GET|PUT) .*/artifacts/", 5, 5, 0.1
        kill(pod)

    faults = tracked.storage.faults
    try:
        return tracked.execute(client.again(submitted), watch), kill
    finally:
        faults.delay_s = 0.0


def test_a_killed_pretraining_continues_in_the_next_pod(
    tracked: Cluster, before: set[tuple[str, str]], disturbed: tuple[Done, Disturbed]
) -> None:
    done, kill = disturbed
    assert done.failed is None, done.why()
    assert [each.attempt for each in done.of("pretrain")] == [0, 1]
    assert digests(tracked.storage) == before
    steps = recorded(tracked.storage, training(tracked.storage, "pretrain"))
    kept = [line["step"] for line in steps if line["time"] < kill.when[0]]
    assert max(kept) >= kill.steps[0] > 0


@pytest.mark.slow
def test_a_pretraining_that_is_asked_to_end_saves_what_it_has(
    tracked: Cluster, client: Client, before: set[tuple[str, str]], disturbed: Any, submitted: Any
) -> None:
    """Draining a node does this: SIGTERM, and SIGKILL after the grace period."""
    forget(tracked, "pretrain", "pretrain", "megatron_checkpoint")
    ended = Disturbed(tracked.storage, "pretrain", Pod.delete)
    done = tracked.execute(client.again(submitted), ended)
    assert done.failed is None, done.why()
    assert ended.saved > ended.steps
    assert digests(tracked.storage) == before


def test_a_storage_that_refuses_and_cuts_connections_for_a_while_is_asked_again(
    tracked: Cluster, before: set[tuple[str, str]], disturbed: tuple[Done, Disturbed]
) -> None:
    done, _ = disturbed
    assert done.failed is None, done.why()
    assert (tracked.storage.faults.refused, tracked.storage.faults.cut) == (0, 0)
    assert digests(tracked.storage) == before and whole(tracked.storage)


def test_files_that_are_gone_end_in_the_command_that_helps(
    tracked: Cluster, client: Client, disturbed: Any, submitted: Any
) -> None:
    """The catalog entry of the checkpoint stays valid forever."""
    forget(tracked, "convert", "convert", "hf_model")
    ((_, digest),) = digests(tracked.storage, ["megatron_checkpoint"])
    lose(tracked, "megatron_checkpoint")
    done = tracked.execute(client.again(submitted))
    assert digest in str(done.failed) and "--overwrite-cache" in str(done.failed)


@pytest.mark.slow
def test_what_is_gone_is_recomputed(
    tracked: Cluster, client: Client, before: set[tuple[str, str]], disturbed: Any, submitted: Any
) -> None:
    lose(tracked, "tokenizer")
    lose(tracked, "megatron_checkpoint")
    done = tracked.execute(client.again(submitted, overwrite_cache=True))
    assert done.failed is None, done.why()
    assert digests(tracked.storage) == before


def test_a_dynamic_that_fails_by_itself_ends_the_execution(tracked: Cluster, client: Client, mlflow: Server) -> None:
    recipe = RECIPE | {"name": "untuned", "corpus": CORPUS, "refresh": None}
    done = tracked.execute(submit(client, recipe, workflow="continuous.refresh_rl", MLFLOW_TRACKING_URI=mlflow.uri))
    assert "refresh: is off" in str(done.failed)
    assert execution(done, mlflow)[0].info.status == "FAILED"
