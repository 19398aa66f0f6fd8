"""Qwen3-MoE: Qwen3 with a mixture of experts in every layer (Yang et al. 2025)."""

from baton.tasks.convert.architecture import Architecture, Experts
from baton.tasks.convert.config import Config
from baton.tasks.convert.families import qwen3
from baton.tasks.convert.families.family import Family, one_window, silu, sizes
from baton.tasks.convert.mapping import Table, gate_up, same


def read(config: Config) -> Architecture:
    silu(config)
    config.only("decoder_sparse_step", 1)
    config.only("mlp_only_layers", [])
    config.ignore("output_router_logits", "router_aux_loss_coef")
    experts = Experts(
        count=config.get("num_local_experts"),
        top_k=config.get("num_experts_per_tok"),
        ffn=config.get("moe_intermediate_size"),
        normalized=config.get("norm_topk_prob"),
    )
    return sizes(config, qk_norm="head", windows=_windows(config), experts=experts)


def _windows(config: Config) -> tuple[int | None, ...]:
    """Return the same window for every layer, since transformers has no layer_types for this family."""
    config.ignore("max_window_layers")
    window = one_window(config)
    return window if config.get("use_sliding_window", True) else ()


DENSE = ("mlp.linear_fc1", "mlp.linear_fc2")

TABLE: Table = {
    **{name: rule for name, rule in qwen3.TABLE.items() if not any(part in name for part in DENSE)},
    "decoder.layers.*.pre_mlp_layernorm.weight": same("model.layers.{layer}.post_attention_layernorm.weight", "hidden"),
    "decoder.layers.*.mlp.router.weight": same("model.layers.{layer}.mlp.gate.weight", "experts", "hidden"),
    "decoder.layers.*.mlp.experts.experts.linear_fc1.weight": gate_up(
        "model.layers.{layer}.mlp.experts.{expert}.gate_proj.weight",
        "model.layers.{layer}.mlp.experts.{expert}.up_proj.weight",
        "expert_ffn",
    ),
    "decoder.layers.*.mlp.experts.experts.linear_fc2.weight": same(
        "model.layers.{layer}.mlp.experts.{expert}.down_proj.weight", "hidden", "expert_ffn"
    ),
}

FAMILY = Family("qwen3_moe", "Qwen3MoeForCausalLM", read, TABLE)
