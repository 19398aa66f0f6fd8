"""Mixtral: Mistral with a mixture of experts in every layer (Jiang et al. 2024)."""

from baton.tasks.convert.architecture import Architecture, Experts
from baton.tasks.convert.config import Config
from baton.tasks.convert.families import llama
from baton.tasks.convert.families.family import Family, one_window, silu, sizes
from baton.tasks.convert.families.qwen3_moe import DENSE
from baton.tasks.convert.mapping import Table, gate_up, same


def read(config: Config) -> Architecture:
    silu(config)
    config.ignore("output_router_logits", "router_aux_loss_coef", "router_jitter_noise")
    experts = Experts(
        count=config.get("num_local_experts"),
        top_k=config.get("num_experts_per_tok"),
        ffn=config.get("intermediate_size"),
    )
    return sizes(config, windows=one_window(config), experts=experts)


TABLE: Table = {
    **{name: rule for name, rule in llama.TABLE.items() if not any(part in name for part in DENSE)},
    "decoder.layers.*.pre_mlp_layernorm.weight": same("model.layers.{layer}.post_attention_layernorm.weight", "hidden"),
    "decoder.layers.*.mlp.router.weight": same(
        "model.layers.{layer}.block_sparse_moe.gate.weight", "experts", "hidden"
    ),
    "decoder.layers.*.mlp.experts.experts.linear_fc1.weight": gate_up(
        "model.layers.{layer}.block_sparse_moe.experts.{expert}.w1.weight",
        "model.layers.{layer}.block_sparse_moe.experts.{expert}.w3.weight",
        "expert_ffn",
    ),
    "decoder.layers.*.mlp.experts.experts.linear_fc2.weight": same(
        "model.layers.{layer}.block_sparse_moe.experts.{expert}.w2.weight", "hidden", "expert_ffn"
    ),
}

FAMILY = Family("mixtral", "MixtralForCausalLM", read, TABLE)
