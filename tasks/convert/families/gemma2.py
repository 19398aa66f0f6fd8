"""Gemma 2: pre- and post-norms, soft-capped scores and logits, a sliding window in every other layer (Riviere et al.
2024).

Megatron-Core 0.16 has no such layer; the names are those of NVIDIA's Megatron-Bridge.
"""

from typing import Any

from baton.tasks.convert.architecture import Architecture
from baton.tasks.convert.config import Config
from baton.tasks.convert.families import llama
from baton.tasks.convert.families.family import Family, sizes, windows
from baton.tasks.convert.mapping import Table, same


def read(config: Config) -> Architecture:
    return sizes(config, **gemma(config))


def gemma(config: Config) -> dict[str, Any]:
    """Read the fields that Gemma 2 and 3 have in common."""
    config.only("hidden_activation", "gelu_pytorch_tanh")
    config.ignore("hidden_act")  # an older name; transformers reads only hidden_activation
    config.only("sliding_window_size", config.get("sliding_window", None))
    config.only("use_bidirectional_attention", False)
    return {
        "norms": "both",
        "unit_norms": True,
        "activation": "gelu_tanh",
        "embedding_scale": config.get("hidden_size") ** 0.5,
        "attention_scale": config.get("query_pre_attn_scalar") ** -0.5,
        "attention_cap": config.get("attn_logit_softcapping", None),
        "logit_cap": config.get("final_logit_softcapping", None),
        "windows": windows(config),
    }


TABLE: Table = {
    **llama.TABLE,
    "decoder.layers.*.self_attention.linear_proj.post_layernorm.weight": same(
        "model.layers.{layer}.post_attention_layernorm.weight", "hidden"
    ),
    "decoder.layers.*.mlp.linear_fc1.layer_norm_weight": same(
        "model.layers.{layer}.pre_feedforward_layernorm.weight", "hidden"
    ),
    "decoder.layers.*.mlp.linear_fc2.post_layernorm.weight": same(
        "model.layers.{layer}.post_feedforward_layernorm.weight", "hidden"
    ),
}

FAMILY = Family("gemma2", "Gemma2ForCausalLM", read, TABLE)
