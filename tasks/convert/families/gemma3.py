"""Gemma 3, text: Gemma 2 with norms on queries and keys, and two rotary bases (Kamath et al. 2025)."""

from tasks.convert.architecture import Architecture
from tasks.convert.config import Config
from tasks.convert.families import gemma2, qwen3
from tasks.convert.families.family import Family, sizes
from tasks.convert.mapping import Table


def read(config: Config) -> Architecture:
    config.ignore("_sliding_window_pattern", "sliding_window_pattern")  # layer_types has what they say
    return sizes(
        config,
        **gemma2.gemma(config),
        qk_norm="head",
        rope=config.rope("full_attention"),
        local_rope=config.rope("sliding_attention"),
    )


TABLE: Table = {
    **gemma2.TABLE,
    **{name: rule for name, rule in qwen3.TABLE.items() if name.endswith(("q_layernorm.weight", "k_layernorm.weight"))},
}

FAMILY = Family("gemma3_text", "Gemma3ForCausalLM", read, TABLE)
