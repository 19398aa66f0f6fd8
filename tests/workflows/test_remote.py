"""`pyflyte run --remote` reports requirements that a cluster's pods would lack before anything is registered."""

import copy
import json
import os
import re
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from flytekit.clis.sdk_in_container.run import RunLevelParams
from flytekit.configuration import Image, ImageConfig, SerializationSettings

from baton import images
from baton.infra.errors import UserError
from baton.infra.placement.config import UNUSED
from baton.tasks.pretrain.task import pretrain
from baton.workflows.checks.run_context import for_a_cluster
from baton.workflows.cluster.remote import checked_for, pass_on
from baton.workflows.recipe import Recipe
from baton.workflows.recipe.text import load
from tests.source import ROOT
from tests.workflows.flyte_admin import admin
from tests.workflows.statements import ASKED, DATA, DPO, SFT

PYFLYTE = str(Path(sys.executable).with_name("pyflyte"))
DIGEST = "sha256:" + "0" * 64
PINNED = {name: f"registry.invalid/{name}@{DIGEST}" for name in (each.name for each in images.BY_FAMILY.values())}
TEXT = {"corpus": {}, "tokenizer": {"vocab_size": 512}, "shards": {}}


def run(recipe: dict[str, Any], pinned: dict[str, str] = PINNED, **environment: str) -> str:
    """Return the client's output for a recipe."""
    pinned_images = [Image.look_up_image_info(name, image) for name, image in pinned.items()]
    params = RunLevelParams(
        remote=True, config_file=None, image_config=ImageConfig.create_from(None, pinned_images), envvars=environment
    )
    pass_on(params)
    try:
        with for_a_cluster():
            load(json.dumps(recipe), Recipe.model_validate, check=lambda found: checked_for(found, params))
    except UserError as error:
        return error.message
    return ""


def test_everything_that_pods_would_not_have_is_reported_at_once(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"text": "a"}\n')
    os.truncate(rows, 100_000_001)
    here = {"source": {"kind": "jsonl", "path": str(rows)}}
    two = {"layout": {"nodes": 2, "micro_batch": 8}, "pod": {"resources": {"memory": "100Mi"}}}
    output = run(TEXT | {"corpus": here, "pretrain": two}, MLFLOW_TRACKING_URI="sqlite:///runs.db")
    assert "the recipe has 4 problems; no stage was started" in output
    assert "corpus.source.path" in output
    assert (
        "at most 100.0 MB are uploaded with a run, and these are 100.0 MB" in output
        and "use its address (s3://…)" in output
    )
    assert "use a path in a folder that all pods mount (BATON_STORAGE=/shared)" in output
    assert "for several nodes use SkyPilot: add `placement: {nodes: 2, …}`" in output
    assert "pretrain.pod.resources.memory: '100Mi'" in output and "at least" in output
    assert "MLFLOW_TRACKING_URI: 'sqlite:///runs.db'" in output and "http://" in output


@pytest.mark.parametrize(
    "stage", ["corpus", "tokenizer", "pretrain", "convert", "evaluate", "data.statements", "post_training.0.sft"]
)
def test_memory_in_which_no_stage_can_say_what_it_lacks_is_refused(stage: str) -> None:
    """Otherwise the process that starts the stage would be killed for memory three times."""
    tuned = {"data": DATA, "post_training": [SFT], "evaluate": {"bits_per_byte": {}}}
    recipe = copy.deepcopy(TEXT | tuned | {"pretrain": {}, "convert": {}})
    holder: Any = recipe
    for part in stage.split("."):
        holder = holder[int(part) if part.isdigit() else part]
    holder["pod"] = {"resources": {"memory": "400Mi"}}
    output = run(recipe)
    assert f"{stage}.pod.resources.memory: '400Mi'" in output
    assert re.search(r"at least \d+Mi: 512Mi for the process that starts the stage", output)


def test_memory_that_does_not_hold_the_model_is_refused_with_its_parts() -> None:
    model = {"layers": 12, "hidden": 768, "heads": 12, "kv_heads": 12, "ffn_hidden": 3072, "vocab_size": 50_304}
    recipe: dict[str, Any] = TEXT | {"pretrain": {"model": model}, "convert": {}}
    recipe |= {"serve": {"pod": {"resources": {"memory": "1Gi", "gpu": 0}}}}
    output = " ".join(run(recipe).split())
    assert "serve.pod.resources.memory: '1Gi'" in output
    parts = r"512Mi for the process .+, 768Mi for vLLM, \d+Mi for the model's weights; the plan's estimate is \d+Gi"
    assert re.search(rf"at least \d+Mi: {parts}", output)


def test_the_plan_s_estimate_is_not_for_a_recipe_to_give() -> None:
    output = run(TEXT | {"corpus": {"pod": {"planned_memory": "4Gi"}}})
    assert "corpus.pod.planned_memory: '4Gi'" in output and "unset: " in output


def test_memory_below_the_estimate_is_reported_and_tried(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(TEXT | {"tokenizer": {"vocab_size": 512, "pod": {"resources": {"memory": "1Gi"}}}}) == ""
    output = "warning: tokenizer.pod.resources.memory: 1Gi is less than the plan's estimate, 3Gi"
    assert output in capsys.readouterr().err


def test_files_that_pods_share_are_not_refused(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"text": "a"}\n')
    os.truncate(tmp_path / "rows.jsonl", 200_000_000)
    here = {"source": {"kind": "jsonl", "path": str(tmp_path / "rows.jsonl")}}
    assert "rows.jsonl" not in run({"corpus": here}, pinned={}, BATON_STORAGE=str(tmp_path))


def test_the_requested_gpus_are_reported(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    none = {"dpo": DPO["dpo"] | {"pod": {"resources": {"gpu": 0}}}}
    hub = {"start_from": {"model": "Qwen/Qwen2.5-7B-Instruct"}, "corpus": {}, "data": DATA}
    assert run(hub | {"post_training": [SFT, none], "evaluate": {"statements": ASKED}}) == ""
    asked = "GPUs that the pods request: evaluate 1, post_training.0.sft 1 ("
    assert asked in capsys.readouterr().err


def test_pods_know_where_people_see_the_execution(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump({"admin": {"endpoint": "dns:///flyte.example:81", "insecure": True}}))
    monkeypatch.setenv("BATON_LINEAGE", "http://lineage.example")
    params = RunLevelParams(remote=True, config_file=str(config), envvars={})
    pass_on(params)
    assert params.envvars["FLYTE_PLATFORM_CONSOLE_ENDPOINT"] == "http://flyte.example:81"
    assert params.envvars["BATON_LINEAGE"] == "http://lineage.example"


def test_without_images_it_says_how_to_have_them() -> None:
    data_alone = {"baton-data": PINNED["baton-data"]}
    output = run(
        TEXT | {"data": DATA, "pretrain": {}, "convert": {}, "evaluate": {"statements": ASKED}}, pinned=data_alone
    )
    assert "baton-train, baton-serve, baton-post-train: no image is configured for these pods" in output
    assert "baton images REGISTRY" in output


def test_a_run_needs_the_images_of_its_stages_alone() -> None:
    some = {name: PINNED[name] for name in ("baton-data", "baton-train")}
    assert run(TEXT | {"pretrain": {}, "convert": {}}, pinned=some) == ""


class EmptyRegistry(BaseHTTPRequestHandler):
    def do_HEAD(self) -> None:
        self.send_error(404)


def test_an_image_that_its_registry_does_not_have_is_refused_before_the_run() -> None:
    """Otherwise its pods would be retried for ten minutes, and none would record anything."""
    with HTTPServer(("127.0.0.1", 0), EmptyRegistry) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        image = f"127.0.0.1:{server.server_port}/baton-data@{DIGEST}"
        output = run({"corpus": {}, "audit": None}, pinned=PINNED | {"baton-data": image})
        server.shutdown()
    assert output.startswith(f"{image}: not in its registry; ")


def test_a_pod_that_needs_an_image_that_the_run_was_registered_without_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """This happens if the execution is relaunched with another recipe in Flyte's console."""
    monkeypatch.setenv("FLYTE_INTERNAL_EXECUTION_ID", "e0")
    monkeypatch.delitem(images.TRAIN.__dict__, "tag", raising=False)
    left_out = [Image.look_up_image_info("baton-train", UNUSED)]
    task: Any = pretrain
    with pytest.raises(images.NoImage, match="baton-train: missing in this pod's image configuration"):
        task.get_image(SerializationSettings(ImageConfig.create_from(None, left_out)))


def test_uses_of_a_stage_that_flyte_cannot_tell_apart_are_refused() -> None:
    recipe = TEXT | {"pretrain": {}, "more_corpora": [{"placement": {"cpus": 2, "storage": "s3://bucket"}}]}
    assert "prepare_corpus: runs several times in this DAG" in run(recipe)


def test_the_memory_of_this_machine_does_not_count() -> None:
    large = {"layers": 48, "hidden": 8192, "heads": 64, "kv_heads": 8, "ffn_hidden": 28672}
    output = run(TEXT | {"pretrain": {"model": large}}, pinned={})
    assert "no image is configured" in output  # the message does not mention memory


def test_a_right_recipe_passes() -> None:
    assert run({}) == ""


def test_pyflyte_asks_before_it_registers(tmp_path: Path) -> None:
    words = ["workflows/pretrain_to_rl.py", "pretrain_to_rl", "--recipe", "workflows/recipes/laptop.yaml"]
    ended = subprocess.run(
        [PYFLYTE, "run", "--remote", "--copy", "all", *words],
        cwd=ROOT, env=os.environ | {"BATON_HOME": str(tmp_path), "FLYTE_PLATFORM_URL": "127.0.0.1:1"},
        check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert ended.returncode == 1
    assert "configured for these pods" in ended.stderr and "Traceback" not in ended.stderr


@pytest.fixture(scope="module")
def registered(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return the objects of a valid recipe that reach a cluster."""
    home = tmp_path_factory.mktemp("home")
    with admin() as (service, address):
        config = home / "config.yaml"
        config.write_text(yaml.safe_dump({"admin": {"endpoint": address, "insecure": True}, "images": PINNED}))
        subprocess.run(
            [PYFLYTE, "--config", str(config), "register", "workflows/pretrain_to_rl.py", "--copy", "none",
             "--project", "p", "--version", "1"],
            cwd=ROOT, env=os.environ | {"BATON_HOME": str(home), "BATON_SECRETS": "HF_TOKEN, MLFLOW_TRACKING_TOKEN"},
            check=True, capture_output=True,
        )  # fmt: skip
    return {each.id.name.rpartition(".")[2]: each.spec.template for each in service.tasks}


def test_images_are_pinned_by_digest(registered: Any) -> None:
    assert registered["stages"].container.image == PINNED["baton-data"]
    assert registered["evaluate"].container.image == PINNED["baton-serve"]


def test_the_pod_that_makes_the_dag_is_small_and_started_again(registered: Any) -> None:
    task = registered["stages"]
    assert [each.value for each in task.container.resources.limits] == ["500m", "1Gi"]
    assert task.metadata.retries.retries == 2


def test_secrets_of_all_pods_travel_by_name(registered: Any) -> None:
    for name in ("stages", "pretrain"):
        secrets = registered[name].security_context.secrets
        assert [each.env_var for each in secrets] == ["HF_TOKEN", "MLFLOW_TRACKING_TOKEN"]
    environment = {each.key: each.value for each in registered["stages"].container.env}
    assert environment["BATON_SECRETS"] == "HF_TOKEN, MLFLOW_TRACKING_TOKEN"
