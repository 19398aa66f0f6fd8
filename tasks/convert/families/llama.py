"""Llama 2 and 3, with Llama 3.1's scaling of the rotary frequencies (Touvron et al. 2023; Grattafiori et al. 2024)."""

from baton.tasks.convert.architecture import Architecture
from baton.tasks.convert.config import Config
from baton.tasks.convert.families.family import Family, silu, sizes
from baton.tasks.convert.mapping import Table, gate_up, qkv, same


def read(config: Config) -> Architecture:
    silu(config)
    return sizes(config)


TABLE: Table = {
    "embedding.word_embeddings.weight": same("model.embed_tokens.weight", "vocab", "hidden"),
    "decoder.layers.*.self_attention.linear_qkv.layer_norm_weight": same(
        "model.layers.{layer}.input_layernorm.weight", "hidden"
    ),
    "decoder.layers.*.self_attention.linear_qkv.weight": qkv("model.layers.{layer}.self_attn.{}_proj.weight"),
    "decoder.layers.*.self_attention.linear_proj.weight": same(
        "model.layers.{layer}.self_attn.o_proj.weight", "hidden", "queries"
    ),
    "decoder.layers.*.mlp.linear_fc1.layer_norm_weight": same(
        "model.layers.{layer}.post_attention_layernorm.weight", "hidden"
    ),
    "decoder.layers.*.mlp.linear_fc1.weight": gate_up(
        "model.layers.{layer}.mlp.gate_proj.weight", "model.layers.{layer}.mlp.up_proj.weight"
    ),
    "decoder.layers.*.mlp.linear_fc2.weight": same("model.layers.{layer}.mlp.down_proj.weight", "hidden", "ffn"),
    "decoder.final_layernorm.weight": same("model.norm.weight", "hidden"),
    "output_layer.weight": same("lm_head.weight", "vocab", "hidden", when=lambda model: not model.tied),
}

FAMILY = Family("llama", "LlamaForCausalLM", read, TABLE)
