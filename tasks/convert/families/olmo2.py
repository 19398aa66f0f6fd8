"""OLMo 2: post-norms of attention and feed-forward, and norms over all queries and all keys (Walsh et al. 2025).

Megatron-Core 0.16 has no such layer; the names follow Gemma's.
"""

from baton.tasks.convert.architecture import Architecture
from baton.tasks.convert.config import Config
from baton.tasks.convert.families import llama
from baton.tasks.convert.families.family import Family, silu, sizes
from baton.tasks.convert.mapping import Table, same


def read(config: Config) -> Architecture:
    silu(config)
    return sizes(config, norms="after", qk_norm="whole")


TABLE: Table = {
    **{name: rule for name, rule in llama.TABLE.items() if not name.endswith("layer_norm_weight")},
    "decoder.layers.*.self_attention.q_layernorm.weight": same(
        "model.layers.{layer}.self_attn.q_norm.weight", "queries"
    ),
    "decoder.layers.*.self_attention.k_layernorm.weight": same("model.layers.{layer}.self_attn.k_norm.weight", "keys"),
    "decoder.layers.*.self_attention.linear_proj.post_layernorm.weight": same(
        "model.layers.{layer}.post_attention_layernorm.weight", "hidden"
    ),
    "decoder.layers.*.mlp.linear_fc2.post_layernorm.weight": same(
        "model.layers.{layer}.post_feedforward_layernorm.weight", "hidden"
    ),
}

FAMILY = Family("olmo2", "Olmo2ForCausalLM", read, TABLE)
