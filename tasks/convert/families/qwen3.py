"""Qwen3, dense: Llama with a norm on each head's query and key (Yang et al. 2025)."""

from baton.tasks.convert.architecture import Architecture
from baton.tasks.convert.config import Config
from baton.tasks.convert.families import llama
from baton.tasks.convert.families.family import Family, silu, sizes
from baton.tasks.convert.families.qwen2 import qwen_windows
from baton.tasks.convert.mapping import Table, same


def read(config: Config) -> Architecture:
    silu(config)
    return sizes(config, qk_norm="head", windows=qwen_windows(config))


TABLE: Table = {
    **llama.TABLE,
    "decoder.layers.*.self_attention.q_layernorm.weight": same(
        "model.layers.{layer}.self_attn.q_norm.weight", "head_dim"
    ),
    "decoder.layers.*.self_attention.k_layernorm.weight": same(
        "model.layers.{layer}.self_attn.k_norm.weight", "head_dim"
    ),
}

FAMILY = Family("qwen3", "Qwen3ForCausalLM", read, TABLE)
