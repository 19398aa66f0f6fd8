"""Checks of the model that a recipe starts from, before any compute."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    BioGptConfig,
    DeepseekV2Config,
    GPT2Config,
    LlamaConfig,
    PretrainedConfig,
    Qwen3Config,
)

from baton.tasks.core.spec import Problem
from baton.workflows.checks.table import checked
from baton.workflows.recipe import Recipe
from baton.workflows.recipe.error import RecipeError
from tests.posttrain.tiny import tiny_model

SFT = {"sft": {"data": "rows"}}
GRPO = {"grpo": {"data": "rows", "rewards": [{"length": {"at_most": 3}}]}}
PAIRS = {"dpo": {"data": "rows", "pairs": {"rewards": [{"length": {"at_most": 3}}]}}}
EVALUATE = {"rows": {"data": "rows", "rewards": [{"length": {"at_most": 3}}], "prompts": 1}}
SIZES = {"vocab_size": 512, "eos_token_id": 0, "pad_token_id": 1, "bos_token_id": None}
MORE = {
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "max_position_embeddings": 256,
}


def problems(folder: Path, **sections: Any) -> list[Problem]:
    """Return the problems of a recipe that starts from the model in `folder`."""
    rows = folder.with_name("rows.jsonl")
    rows.write_text("".join(json.dumps({"prompt": f"{n}?", "completion": "Yes."}) + "\n" for n in range(40)))
    recipe = {"start_from": {"model": str(folder)}, "data": {"rows": {"path": str(rows), "held_out": 0.5}}, **sections}
    try:
        checked(Recipe.model_validate(recipe))
    except RecipeError as error:
        return error.problems
    return []


def of_class(folder: Path, config: PretrainedConfig) -> Path:
    """Write a model of another class, with the tiny model's tokenizer."""
    tiny_model(folder)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


def test_a_sound_model_passes(tmp_path: Path) -> None:
    assert problems(tiny_model(tmp_path / "model"), post_training=[SFT, GRPO], evaluate=EVALUATE) == []


def test_an_activation_that_vllm_lacks_is_refused(tmp_path: Path) -> None:
    llama = of_class(tmp_path / "model", LlamaConfig(**SIZES, **MORE, hidden_act="gelu"))
    (found,) = problems(llama, post_training=[SFT], evaluate=EVALUATE)
    assert (
        found.allowed == "a model with hidden_act: silu, the only activation of vLLM's LlamaForCausalLM; this one: gelu"
    )
    assert problems(llama, post_training=[SFT]) == []  # no stage uses vLLM


def test_an_adapter_of_a_layer_that_the_model_lacks_is_refused_with_those_that_it_has(tmp_path: Path) -> None:
    def adapted(*targets: str) -> dict[str, Any]:
        return {"sft": {"data": "rows", "adapter": {"lora": {"targets": [*targets]}}}}

    (found,) = problems(tiny_model(tmp_path / "model"), post_training=[adapted("q_proj"), adapted("q_prj", "o_proj")])
    assert (found.path, found.value) == ("post_training.1.sft.adapter.lora.targets", "q_prj")
    assert "down_proj, gate_proj, k_proj, o_proj, q_proj, up_proj, v_proj; or all-linear" in found.allowed


def test_older_names_of_its_sizes_are_known(tmp_path: Path) -> None:
    config = GPT2Config(**SIZES, n_positions=128, n_embd=64, n_layer=1, n_head=2)
    long = {"sft": {"data": "rows", "max_prompt_tokens": 64, "max_new_tokens": 65}}
    found = problems(of_class(tmp_path / "model", config), post_training=[long])
    assert "start_from.model's max_position_embeddings (128)" in found[0].allowed


@pytest.mark.parametrize(
    ("config", "sections", "words"),
    [
        (BioGptConfig(**SIZES, **MORE), {"post_training": [GRPO]}, "vLLM (post_training.0.grpo) supports"),
        (BioGptConfig(**SIZES, **MORE), {"post_training": [PAIRS]}, "vLLM (post_training.0.dpo) supports"),
        (
            Qwen3Config(**SIZES, **MORE, num_key_value_heads=1, head_dim=16),
            {"evaluate": EVALUATE},
            "which vLLM (evaluate) supports; here 16",
        ),
        (
            DeepseekV2Config(**SIZES, **MORE, kv_lora_rank=8, n_routed_experts=2, num_experts_per_tok=1),
            {"serve": {}},
            "vLLM (serve) supports only on GPUs",
        ),
    ],
)
def test_the_stage_that_cannot_run_it_is_named(
    config: PretrainedConfig, sections: dict[str, Any], words: str, tmp_path: Path
) -> None:
    folder = of_class(tmp_path / "model", config)
    (problem,) = problems(folder, **sections)
    assert problem.path == "start_from.model" and words in problem.allowed
    assert problems(folder, post_training=[SFT]) == []


def separate_head(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"] + 1
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def without_a_tensor(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def quantized(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": {"quant_method": "awq"}}))


def torn(folder: Path) -> None:
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(content[:-1])


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (separate_head, "lm_head.weight differs from model.embed_tokens.weight"),
        (without_a_tensor, "model.layers.1.mlp.up_proj.weight is missing"),
        (quantized, "its weights are quantized (config.json: awq)"),
        (torn, "model.safetensors: cannot be read (it is truncated"),
    ],
)
@pytest.mark.parametrize("section", ["start_from", "init_from"])
def test_files_that_are_no_whole_model(
    damage: Callable[[Path], None], words: str, section: str, tmp_path: Path
) -> None:
    folder = tiny_model(tmp_path / "model")
    damage(folder)
    found = problems(folder, post_training=[SFT]) if section == "start_from" else imported(folder)
    (problem,) = (problem for problem in found if problem.path == f"{section}.model")
    assert words in problem.allowed or section == "init_from"


def imported(folder: Path, **model: Any) -> list[Problem]:
    """Return the problems of a recipe that continues pretraining."""
    recipe = {
        "corpus": {"source": {"kind": "files", "path": str(folder.parent)}},
        "tokenizer": {"existing": str(folder)},
        "shards": {},
        "init_from": {"model": str(folder)},
        "pretrain": {
            "model": {"layers": 2, "hidden": 64, "heads": 2, "kv_heads": 1, "head_dim": 32, "ffn_hidden": 128, **model},
            "sequence_length": 64,
            "steps": 1,
        },
    }
    try:
        checked(Recipe.model_validate(recipe))
    except RecipeError as error:
        return error.problems
    return []


def test_every_field_of_the_model_that_pretraining_starts_from_is_compared(tmp_path: Path) -> None:
    found = imported(tiny_model(tmp_path / "model"), rope_theta=500.0, norm_eps=1e-5, ffn_hidden=72)
    assert {problem.path: problem.allowed for problem in found if problem.path.startswith("pretrain")} == {
        "pretrain.model.rope_theta": "10000.0, as init_from.model's rope_theta is",
        "pretrain.model.norm_eps": "1e-06, as init_from.model's norm_eps is",
        "pretrain.model.ffn_hidden": "128, as init_from.model's ffn_hidden is",
    }


def test_a_model_of_another_family_is_no_start_of_a_pretraining(tmp_path: Path) -> None:
    config = GPT2Config(**SIZES, n_positions=128, n_embd=64, n_layer=1, n_head=2)
    found = imported(of_class(tmp_path / "model", config))
    assert any(
        problem.path == "init_from.model" and "a family that `pretrain` continues (llama, " in problem.allowed
        for problem in found
    )
