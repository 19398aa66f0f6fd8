"""The resources that the pods of a DAG request, as Flyte gets them."""

import json
from typing import Any

import pytest
from flytekit.models.task import Resources

from baton.infra.errors import UserError
from baton.infra.flyte.task import FlyteTask
from baton.infra.pod_spec import FAMILIES, PodSpec, in_bytes, in_gib
from baton.tasks.stage_task import StageTask
from baton.workflows.recipe import Recipe
from baton.workflows.recipe.error import RecipeError
from tests.stage.compiled import job_spec, nodes, templates

NAME = Resources.ResourceName
POD = {
    "resources": {
        "cpu": "500m",
        "memory": "64Gi",
        "gpu": 1,
        "accelerator": "nvidia-tesla-a100",
        "shared_memory": "16Gi",
        "ephemeral_storage": "200Gi",
    },
    "retries": 5,
    "interruptible": True,
    "timeout": 3600,
    "secrets": ["HF_TOKEN"],
    "node_selector": {"pool": "gpu"},
    "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
    "termination_grace_period_seconds": 300,
}
SECTIONS: dict[str, Any] = {"corpus": {}, "tokenizer": {"vocab_size": 512}, "shards": {}, "pretrain": {}}


def recipe(**sections: Any) -> Recipe:
    return Recipe.model_validate(SECTIONS | sections)


@pytest.fixture(scope="module")
def asked() -> Any:
    return job_spec(recipe(pretrain={"pod": POD}))


@pytest.fixture(scope="module")
def usual() -> Any:
    return job_spec(recipe())


def amounts(node: Any) -> dict[Any, str]:
    resources = node.task_node.overrides.resources
    assert [(each.name, each.value) for each in resources.requests] == [
        (each.name, each.value) for each in resources.limits
    ]
    return {each.name: each.value for each in resources.limits}


def test_a_node_asks_for_what_the_recipe_says(asked: Any) -> None:
    (node,) = nodes(asked)["pretrain"]
    assert amounts(node) == {NAME.CPU: "500m", NAME.MEMORY: "64Gi", NAME.GPU: "1", NAME.EPHEMERAL_STORAGE: "200Gi"}
    extended = node.task_node.overrides.extended_resources
    assert (extended.gpu_accelerator.device, extended.shared_memory.size_limit) == ("nvidia-tesla-a100", "16Gi")
    assert (node.metadata.retries.retries, node.metadata.interruptible) == (5, True)
    assert node.metadata.timeout.total_seconds() == 3600


def test_kubernetes_gets_the_nodes_and_the_time_to_save(asked: Any) -> None:
    spec = templates(asked)["pretrain"].k8s_pod.pod_spec
    assert spec["nodeSelector"] == {"pool": "gpu"}
    assert spec["tolerations"] == POD["tolerations"]
    assert spec["terminationGracePeriodSeconds"] == 300


def test_a_pod_of_its_own_runs_the_same_command(asked: Any, usual: Any) -> None:
    task = templates(asked)["pretrain"]
    (container,) = task.k8s_pod.pod_spec["containers"]
    plain = templates(usual)["tokenize"].container
    assert (task.container, task.config) == (None, {"primary_container_name": "primary"})
    assert container["args"][:-1] == [*plain.args[:-3], "baton.tasks.pretrain.task", "task-name"]
    assert container["image"].startswith("registry.invalid/baton-train@")
    env = {each["name"]: each["value"] for each in container["env"]}
    assert env == plain.env | {"BATON_STOP_GRACE_S": "300"}
    assert task.to_flyte_idl().k8s_pod.pod_spec["terminationGracePeriodSeconds"] == 300


def test_a_secret_is_an_environment_variable(asked: Any, usual: Any) -> None:
    (secret,) = templates(asked)["pretrain"].security_context.secrets
    assert (secret.group, secret.key, secret.env_var, secret.mount_requirement.name) == (
        "baton",
        "HF_TOKEN",
        "HF_TOKEN",
        "ENV_VAR",
    )
    assert templates(usual)["pretrain"].security_context is None


def test_no_pod_has_flyte_s_500_mi(usual: Any) -> None:
    for found in nodes(usual).values():
        assert all(in_bytes(amounts(node)[NAME.MEMORY]) >= 2 * 1024**3 for node in found)


def test_who_trains_has_time_to_save_and_shared_memory(usual: Any) -> None:
    (node,) = nodes(usual)["pretrain"]
    assert templates(usual)["pretrain"].k8s_pod.pod_spec["terminationGracePeriodSeconds"] == 120
    assert node.task_node.overrides.extended_resources.shared_memory.mount_path == "/dev/shm"
    assert templates(usual)["tokenize"].k8s_pod is None


def test_what_is_left_out_is_as_usual(usual: Any) -> None:
    some = job_spec(recipe(pretrain={"pod": {"resources": {"memory": "64Gi"}, "retries": 0}}))
    (node,), (before,) = nodes(some)["pretrain"], nodes(usual)["pretrain"]
    assert amounts(node) == amounts(before) | {NAME.MEMORY: "64Gi"}
    assert (node.metadata.retries.retries, before.metadata.retries.retries) == (0, 2)


def test_a_placed_stage_keeps_a_container_for_its_connector() -> None:
    spec = job_spec(recipe(pretrain={"placement": {"accelerators": ["H100:1"]}, "pod": POD}))
    assert templates(spec)["pretrain"].k8s_pod is None
    assert templates(spec)["pretrain"].container.args[0] == "pyflyte-fast-execute"


@pytest.mark.parametrize(
    "second",
    [
        {"placement": {"cpus": 2}},
        {"pod": {"node_selector": {"pool": "other"}}},
        {"pod": {"tolerations": [{"key": "spot"}]}},
        {"pod": {"secrets": ["HF_TOKEN"]}},
    ],
    ids=["placement", "node_selector", "tolerations", "secrets"],
)
def test_uses_of_one_stage_that_flyte_cannot_tell_apart_are_refused(second: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="prepare_corpus: runs several times in this DAG"):
        job_spec(recipe(more_corpora=[second]))


def test_uses_of_one_stage_may_take_different_amounts() -> None:
    spec = job_spec(recipe(more_corpora=[{"pod": {"resources": {"memory": "9Gi"}}}]))
    assert [amounts(node)[NAME.MEMORY] for node in nodes(spec)["prepare_corpus"]] == ["2Gi", "9Gi"]


@pytest.mark.parametrize(
    "pod",
    [
        {"resources": {"memory": "64 gigabytes"}},
        {"resources": {"cpus": 4}},
        {"resources": {"gpu": -1}},
        {"secrets": ["HF TOKEN"]},
        {"tolerations": [{"effect": "Never"}]},
        {"timeout": "1h"},
    ],
    ids=json.dumps,
)
def test_a_wrong_pod_is_a_problem_of_the_recipe(pod: dict[str, Any]) -> None:
    with pytest.raises(RecipeError, match=f"pretrain.pod.{next(iter(pod))}"):
        recipe(pretrain={"pod": pod})


@pytest.mark.parametrize(("words", "size"), [("512", 512), ("2Gi", 2 * 1024**3), ("1.5M", 1.5e6), ("3k", 3000)])
def test_kubernetes_units(words: str, size: float) -> None:
    assert in_bytes(words) == size


def test_a_size_is_rounded_up() -> None:
    assert [in_gib(size) for size in (1, 2 * 1024**3, 2 * 1024**3 + 1)] == ["1Gi", "2Gi", "3Gi"]


def test_every_family_has_retries_for_what_another_pod_may_cure() -> None:
    assert all(PodSpec().over(each).retries for each in FAMILIES.values())


def test_a_task_s_method_is_overridden_once() -> None:
    """The behavior of a stage's call is in one class, tasks/stage_task.py."""
    decided, offered = (
        {name for name, value in vars(kind).items() if callable(value)} for kind in (StageTask, FlyteTask)
    )
    assert {"__call__", "local_execute", "execute"} <= decided
    assert not decided & offered
