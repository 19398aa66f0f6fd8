"""The recipes that tune 8 B and 32 B models, planned for the GPUs that they name. The models' config.json, with the
shapes of Qwen/Qwen3-8B-Base and Qwen/Qwen3-32B, replaces the hub's."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from baton.tasks.hardware.machine import Machine
from baton.tasks.hardware.need import MFU
from baton.workflows.checks.table import checked
from baton.workflows.plan.planned import plan
from baton.workflows.plan.text import text
from baton.workflows.recipe import Recipe, context_of
from baton.workflows.recipe.error import RecipeError
from tests.shapes import shapes_only
from tests.workflows.test_recipes import read

SHAPES: dict[str, dict[str, Any]] = {
    "8B": {"hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36, "num_attention_heads": 32},
    "32B": {"hidden_size": 5120, "intermediate_size": 25600, "num_hidden_layers": 64, "num_attention_heads": 64},
}
H100, L4 = "NVIDIA H100 80GB HBM3", "NVIDIA L4"


def model(folder: Path, size: str) -> str:
    config = SHAPES[size] | {
        "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "num_key_value_heads": 8, "head_dim": 128,
        "vocab_size": 151936, "eos_token_id": 0, "tie_word_embeddings": False, "max_position_embeddings": 32768,
    }  # fmt: skip
    return str(shapes_only(folder, config))


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Simulate a machine with these GPUs."""
    return lambda *gpus: monkeypatch.setattr(
        "baton.workflows.checks.run_context.this_machine", lambda: Machine(gpus, 2**40)
    )


@pytest.mark.parametrize(
    ("name", "size", "gpus", "stages"),
    [
        ("8b-rl", "8B", (H100,) * 8, ["sft", "dpo", "grpo"]),
        ("8b-qlora", "8B", (L4,), ["sft", "dpo"]),
        ("32b-rl", "32B", (), ["grpo"]),
    ],
)
def test_it_fits_the_gpus_that_it_is_for(
    machine: Callable[..., None], tmp_path: Path, name: str, size: str, gpus: tuple[str, ...], stages: list[str]
) -> None:
    machine(*gpus)
    recipe = Recipe.model_validate(read(name) | {"start_from": {"model": model(tmp_path, size)}})
    steps = {step.stage: step for step in plan(recipe, context_of(recipe), MFU)}
    for stage in stages:
        step = steps[stage]
        assert step.need and step.device_memory and step.hours
        assert 0.3 < step.need.memory.total / step.device_memory < 0.95, step.need.memory.breakdown()


def test_without_rollout_servers_32b_does_not_fit_and_the_plan_names_them(
    machine: Callable[..., None], tmp_path: Path
) -> None:
    machine()
    grpo = read("32b-rl")["post_training"][0]["grpo"]
    grpo |= {"rollout_servers": None, "layout": grpo["layout"] | {"nodes": 4}, "batch_size": 512}
    changes = {"start_from": {"model": model(tmp_path, "32B")}, "post_training": [{"grpo": grpo}]}
    instead = r"use rollout_servers: {nodes: 1, engines: 4, tensor_parallel: 2}"
    with pytest.raises(RecipeError, match=rf"needs .* GB on each H100 .*vLLM 66.1 GB; {instead}"):
        checked(Recipe.model_validate(read("32b-rl") | changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rollout_servers": {"nodes": 1, "engines": 8}}, r"rollout_servers.gpu_memory_share: 0.9\n.*more tensor_par"),
        (
            {"rollout_servers": {"nodes": 2, "tensor_parallel": 8}},
            r"placement.nodes: 4\n *5: as layout.nodes and rollout",
        ),
        ({"rollout_servers": {"tensor_parallel": 4}}, r"placement.nodes: 4\n *3: .*(.|\n)*H100:12"),
    ],
)
def test_what_rollout_servers_need_is_checked(
    machine: Callable[..., None], tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    machine()
    grpo = read("32b-rl")["post_training"][0]["grpo"] | changes
    recipe = read("32b-rl") | {"start_from": {"model": model(tmp_path, "32B")}, "post_training": [{"grpo": grpo}]}
    with pytest.raises(RecipeError, match=message):
        checked(Recipe.model_validate(recipe))


def test_a_plan_counts_the_gpus_of_rollout_servers(machine: Callable[..., None], tmp_path: Path) -> None:
    machine()
    recipe = Recipe.model_validate(read("32b-rl") | {"start_from": {"model": model(tmp_path, "32B")}})
    context = context_of(recipe)
    shown = "\n".join(text(recipe.name, list(plan(recipe, context, MFU))))
    assert "2 vLLM engines, tensor parallel 4, on each of 1 separate machine: 16.4 GB of weights" in shown
    assert " h on 32 H100" in shown


def test_grpo_in_4_bits_does_not_fit_beside_vllm_on_24_gb(machine: Callable[..., None], tmp_path: Path) -> None:
    machine(L4)
    grpo = read("8b-rl")["post_training"][2]["grpo"]
    grpo |= {"layout": {"micro_batch": 1}, "adapter": {"quantize": "nf4"}, "gpu_memory_share": 0.8}
    changes = {"start_from": {"model": model(tmp_path, "8B")}, "post_training": [{"grpo": grpo}]}
    with pytest.raises(RecipeError, match=r"needs .* GB on one L4 \(24 GB\): .*vLLM 19.2 GB"):
        checked(Recipe.model_validate(read("8b-rl") | changes))
