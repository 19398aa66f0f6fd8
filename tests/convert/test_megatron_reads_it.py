"""Megatron loads an imported checkpoint in one process and in any layout, and computes the same."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from baton.tasks.convert.megatron_model import CHECKPOINT
from baton.tasks.models.model_spec import ModelSpec
from baton.tasks.pretrain.checkpoint import load_chunks
from baton.tasks.pretrain.initialization import shards
from baton.tasks.pretrain.layout import Layout
from baton.tasks.pretrain.model import build_model, transformer_config
from tests.convert import models
from tests.convert.load_under import key_of, load_and_compare, part_of, spec_of
from tests.convert.models import COMMON, FAMILIES, LENGTH, make, megatron_weights, text
from tests.convert.test_round_trip import to_megatron
from tests.pretrain.alone import alone
from tests.pretrain.ranks import Ranks

# isort: split
from megatron.core import dist_checkpointing

BOUND = 2e-5  # bound for logits in fp32, as in test_megatron_forward.py

TRAINABLE = [
    "llama",
    "llama-tied",
    "mistral-window",
    "qwen2",
    "qwen3",
    "qwen3_moe",
    "qwen3_moe-unnormalized",
    "mixtral",
]
# sizes that two processes can share
EVEN = {"vocab_size": 102, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2}
EVEN_EXPERTS = {"num_experts": 6, "num_local_experts": 6}
TWO = Layout(micro_batch=2, processes=2)
LAYOUTS = [
    ("llama", TWO.model_copy(update={"tensor": 2, "sequence_parallel": True})),
    ("qwen2", TWO.model_copy(update={"pipeline": 2, "virtual_pipeline": 2})),
    ("qwen3_moe", TWO.model_copy(update={"expert": 2})),
]


def as_a_spec(folder: Path) -> tuple[ModelSpec, int]:
    about = json.loads((folder / "model.json").read_text())
    return ModelSpec.model_validate(about["model"]), about["vocab_size"]


@torch.no_grad()
def transformers_logits(folder: Path) -> Tensor:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    logits: Tensor = model.eval()(text(), use_cache=False).logits
    return logits


@torch.no_grad()
def megatron_logits(folder: Path) -> Tensor:
    """Return the logits of the model that Megatron-Core loads in one process."""
    spec, vocabulary = as_a_spec(folder)
    with alone():
        model = build_model(spec, transformer_config(spec, "fp32"), vocabulary).eval()
        load_chunks([model], folder / CHECKPOINT)
        logits: Tensor = model(text(), torch.arange(LENGTH).expand(2, -1).contiguous(), None)
    return logits


@pytest.mark.parametrize("name", TRAINABLE)
def test_megatron_computes_what_transformers_computes(name: str, tmp_path: Path) -> None:
    folder = make(name, tmp_path / "model")
    found = megatron_logits(to_megatron(folder, tmp_path / "megatron"))
    assert float((found - transformers_logits(folder)).abs().max()) < BOUND


def test_megatron_loads_all_of_it_bit_for_bit(tmp_path: Path) -> None:
    folder = make("qwen3_moe", tmp_path / "model", torch.bfloat16)
    there = to_megatron(folder, tmp_path / "megatron")
    spec, vocabulary = as_a_spec(there)
    expected = megatron_weights(folder)
    with alone():
        model = build_model(spec, transformer_config(spec, "bf16"), vocabulary)
        load_chunks([model], there / CHECKPOINT)
        names = set(dist_checkpointing.load_tensors_metadata(str(there / CHECKPOINT)))
        loaded = list(shards(model))
    assert names == {shard.key for shard in loaded}
    assert {key_of(shard) for shard in loaded} == expected.keys()
    for shard in loaded:
        assert torch.equal(shard.data, part_of(shard, expected[key_of(shard)])), shard.key


def test_megatron_s_strictest_reading_finds_nothing_amiss(tmp_path: Path) -> None:
    there = to_megatron(make("qwen3", tmp_path / "model"), tmp_path / "megatron")
    spec, vocabulary = as_a_spec(there)
    with alone():
        model = build_model(spec, transformer_config(spec, "fp32"), vocabulary)
        wanted = {"model": model.sharded_state_dict()}
        _, unasked, unfound = dist_checkpointing.load(wanted, str(there / CHECKPOINT), strict="return_all")
    assert not unfound
    assert all(name.endswith("._extra_state") for name in unasked)  # state of Transformer Engine's modules


@pytest.mark.parametrize(("name", "layout"), LAYOUTS, ids=[f"{name}-{layout.name()}" for name, layout in LAYOUTS])
def test_any_layout_loads_its_part(name: str, layout: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FAMILIES, name, lambda: AutoConfig.for_model(name, **COMMON | EVEN | experts(name)))
    folder = make(name, tmp_path / "model", torch.bfloat16)
    there = to_megatron(folder, tmp_path / "megatron")
    spec, vocabulary = as_a_spec(there)
    torch.save(megatron_weights(folder), tmp_path / "weights.pt")
    wanted = spec_of(spec, layout=layout).model_dump(mode="json")
    arguments = wanted, "bf16", vocabulary, there / CHECKPOINT, tmp_path / "weights.pt"
    Ranks(layout.world, tmp_path, load_and_compare, *arguments).succeed()


def experts(name: str) -> dict[str, Any]:
    return models.MIXTURE | EVEN_EXPERTS if name == "qwen3_moe" else {}


def test_a_model_that_cannot_be_trained_here_has_no_spec(tmp_path: Path) -> None:
    there = to_megatron(make("gemma2", tmp_path / "model"), tmp_path / "megatron")
    assert not (there / "model.json").exists()
