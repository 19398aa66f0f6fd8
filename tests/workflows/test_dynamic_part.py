"""A dynamic part of a DAG in its pod: the resources of its stages, and retries when the store is unreachable."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from flytekit.exceptions.user import FlyteRecoverableException

from baton.infra.errors import UserError
from baton.infra.pod_spec import Resources, in_bytes
from baton.infra.process.launch import Terminated
from baton.infra.tracking.store import TrackingUnreachable
from baton.workflows.cluster.pod_defaults import resources
from baton.workflows.dag.dynamic_part import dag_part
from baton.workflows.dag.recorded import begin
from baton.workflows.pretrain_to_rl import stages
from baton.workflows.recipe import Recipe, context_of
from baton.workflows.recipe.error import RecipeError
from tests.tracking.conftest import empty_store, home, runs
from tests.workflows.statements import DATA, GRPO

__all__ = ["empty_store", "home"]

GRPO_STAGE = "post_training.0.grpo"
CPU: dict[str, Any] = {
    "corpus": {},
    "tokenizer": {"vocab_size": 512},
    "shards": {},
    "pretrain": {"layout": {"processes": 2, "micro_batch": 8}},
    "convert": {},
    "data": DATA,
    "post_training": [GRPO],
}
GPU = CPU | {"pretrain": {"layout": {"processes": 2, "micro_batch": 8, "device": "H100"}}}


@dag_part
def look(recipe: Recipe, error: str) -> str:
    if error == "away":
        raise TrackingUnreachable("the store is away")
    recipe = begin(recipe)
    if error == "SIGTERM":
        os.kill(os.getpid(), signal.SIGTERM)
    if error:
        raise UserError(error)
    assert recipe.pretrain
    return str(recipe.pretrain.pod and recipe.pretrain.pod.resources.memory)


def run(recipe: dict[str, Any], error: str = "") -> str:
    function: Any = look
    return str(function.task_function(recipe=Recipe.model_validate(recipe), error=error))


@pytest.fixture
def pod(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLYTE_INTERNAL_EXECUTION_ID", "e1")


def test_on_one_machine_the_recipe_is_as_it_was_written() -> None:
    assert run(CPU) == "None"


def test_in_a_pod_the_plan_says_what_is_left_open(pod: None) -> None:
    assert run(CPU) == resources(context_of(Recipe.model_validate(CPU)), "pretrain").memory


def test_in_a_pod_the_recipe_has_the_last_word(pod: None) -> None:
    own = CPU | {"pretrain": CPU["pretrain"] | {"pod": {"resources": {"memory": "99Gi"}}}}
    assert run(own) == "99Gi"


def test_a_store_that_is_away_may_be_back_for_the_next_pod(pod: None) -> None:
    with pytest.raises(FlyteRecoverableException, match="the store is away"):
        run(CPU, "away")


def test_what_a_person_must_change_is_not_tried_again(pod: None) -> None:
    with pytest.raises(UserError, match="wrong"):
        run(CPU, "wrong")


@pytest.mark.parametrize(
    ("error", "raised", "status"), [("wrong", UserError, "FAILED"), ("SIGTERM", Terminated, "KILLED")]
)
def test_a_pod_that_fails_or_is_deleted_ends_the_execution(
    pod: None, error: str, raised: type[BaseException], status: str
) -> None:
    """There is no stage yet whose pod would end the execution."""
    with pytest.raises(raised):
        run(CPU, error)
    (execution,) = runs("execution")
    assert (execution.data.tags["baton.flyte"], execution.info.status) == ("//e1", status)


def test_a_recipe_that_no_client_has_checked_is_refused_in_the_pod_and_recorded(pod: None) -> None:
    function: Any = stages
    with pytest.raises(RecipeError, match=r"shards: 'on'\n +needs tokenizer"):
        function.task_function(recipe=Recipe.model_validate({"corpus": {}, "shards": {}, "pretrain": {}}))
    (execution,) = runs("execution")
    assert execution.info.status == "FAILED"


def of(recipe: dict[str, Any], stage: str) -> Resources:
    return resources(context_of(Recipe.model_validate(recipe)), stage)


def test_each_process_on_a_cpu_has_a_core_and_memory() -> None:
    one = of(CPU | {"pretrain": {}}, "pretrain")
    assert (of(CPU, "pretrain").cpu, of(CPU, "pretrain").gpu) == (2, None)
    assert one.memory == "3Gi" and of(CPU, "pretrain").memory in ("5Gi", "6Gi")


def test_each_process_on_a_gpu_has_one() -> None:
    assert of(GPU, "pretrain").gpu == 2


def test_a_recipe_for_gpus_tunes_and_samples_on_one() -> None:
    assert (of(GPU, GRPO_STAGE).gpu, of(CPU, GRPO_STAGE).gpu) == (1, None)


LARGE = {"layers": 24, "hidden": 1024, "heads": 16, "kv_heads": 8, "ffn_hidden": 2816, "vocab_size": 150000}


def test_a_large_model_needs_gpus_whatever_the_recipe_leaves_out() -> None:
    """The model has about 0.4 B weights, the size of the smallest chat models."""
    large = CPU | {"pretrain": {"model": LARGE}, "serve": {}, "evaluate": {"bits_per_byte": {}}}
    stages = ("pretrain", GRPO_STAGE, "evaluate", "serve")
    assert [of(large, stage).gpu for stage in stages] == 4 * [1]
    assert of(large, "convert").gpu is None


def test_a_pod_has_memory_for_what_its_gpus_offload() -> None:
    def memory(layout: dict[str, Any]) -> float:
        grpo = {"grpo": GRPO["grpo"] | {"layout": layout}}
        return in_bytes(of(CPU | {"pretrain": {"model": LARGE}, "post_training": [grpo]}, GRPO_STAGE).memory or "")

    assert memory({"sharding": "fsdp2", "cpu_offload": True}) > memory({"sharding": "fsdp2"}) + 7e9


def test_a_hub_s_model_is_taken_for_a_large_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    hub = tuned({}) | {"corpus": {}, "start_from": {"model": "Qwen/Qwen2.5-7B-Instruct"}}
    assert of(hub, GRPO_STAGE).gpu == 1
    assert of(hub | tuned({"gpu": 0}), GRPO_STAGE) == Resources()


def test_a_recipe_that_says_how_many_gpus_has_the_rest_to_suit() -> None:
    none = GPU | tuned({"gpu": 0})
    assert of(none, GRPO_STAGE).memory == of(CPU, GRPO_STAGE).memory != of(GPU, GRPO_STAGE).memory
    assert of(CPU | tuned({"gpu": 1}), GRPO_STAGE) == of(GPU, GRPO_STAGE)


def tuned(resources: dict[str, Any]) -> dict[str, Any]:
    """Return a recipe with post-training in a pod with these resources."""
    return {"data": DATA, "post_training": [{"grpo": GRPO["grpo"] | {"pod": {"resources": resources}}}]}


def test_what_the_plan_does_not_know_is_left_to_the_stage() -> None:
    assert of(CPU, "convert") == Resources()


def test_a_pod_has_memory_for_the_text_that_trains_its_tokenizer() -> None:
    def memory(tokenizer: dict[str, Any]) -> str | None:
        return of({"corpus": {}, "tokenizer": tokenizer, "shards": {}, "pretrain": {}}, "tokenizer").memory

    assert memory({"vocab_size": 300}) == "3Gi"
    assert memory({"vocab_size": 300, "sample_mb": 4096}) == "7Gi"
    assert memory({"existing": "owner/name"}) is None
