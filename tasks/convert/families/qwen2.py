"""Qwen2 and Qwen2.5: Llama with biases on queries, keys and values (Yang et al. 2024)."""

from baton.tasks.convert.architecture import Architecture
from baton.tasks.convert.config import Config
from baton.tasks.convert.families import llama
from baton.tasks.convert.families.family import Family, silu, sizes, windows
from baton.tasks.convert.mapping import Table, qkv


def read(config: Config) -> Architecture:
    silu(config)
    return sizes(config, qkv_bias=True, windows=qwen_windows(config))


def qwen_windows(config: Config) -> tuple[int | None, ...]:
    """Return sliding windows by layer_types, which transformers derives from the ignored fields; None if disabled."""
    config.ignore("use_sliding_window", "max_window_layers")
    config.only("use_mrope", False)
    return windows(config)


TABLE: Table = {
    **llama.TABLE,
    "decoder.layers.*.self_attention.linear_qkv.bias": qkv("model.layers.{layer}.self_attn.{}_proj.bias", bias=True),
}

FAMILY = Family("qwen2", "Qwen2ForCausalLM", read, TABLE)
