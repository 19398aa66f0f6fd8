"""DeepSeek-V3: latent attention, fine-grained experts chosen by group, a shared expert, and dense first layers
(Liu et al. 2024). Multi-token prediction and the release's fp8 weights are not supported."""

from baton.tasks.convert.architecture import Architecture, Experts, Latent
from baton.tasks.convert.config import Config, mscale
from baton.tasks.convert.families import llama
from baton.tasks.convert.families.family import Family, silu, sizes
from baton.tasks.convert.mapping import Table, gate_up, same
from baton.tasks.models.errors import ConversionError


def read(config: Config) -> Architecture:
    silu(config)
    config.only("rope_interleave", True)
    # transformers hard-codes this value in the low-rank projections' norms, Megatron does not
    config.only("rms_norm_eps", 1e-6)
    config.only("norm_topk_prob", True)  # Megatron always normalizes after a sigmoid
    config.ignore("num_nextn_predict_layers")  # weights of such layers are an error, since they have no place
    config.only("head_dim", config.get("qk_rope_head_dim"))  # transformers computes the rotary embedding from it
    config.ignore("qk_head_dim")  # follows from the others
    config.ignore("ep_size", "aux_loss_alpha", "seq_aux")  # training only
    config.only("moe_layer_freq", 1)
    config.only("scoring_func", "sigmoid")
    config.only("topk_method", "noaux_tc")
    latent = Latent(
        q_rank=config.get("q_lora_rank", None),
        kv_rank=config.get("kv_lora_rank"),
        nope=config.get("qk_nope_head_dim"),
        rope=config.get("qk_rope_head_dim"),
        value=config.get("v_head_dim"),
    )
    experts = Experts(
        count=config.get("n_routed_experts"),
        top_k=config.get("num_experts_per_tok"),
        ffn=config.get("moe_intermediate_size"),
        shared_ffn=config.get("n_shared_experts", 0) * config.get("moe_intermediate_size"),
        scores="sigmoid",
        bias=True,
        groups=config.get("n_group"),
        top_groups=config.get("topk_group"),
        scale=config.get("routed_scaling_factor"),
        first=config.get("first_k_dense_replace"),
    )
    if experts.count % experts.groups or experts.top_groups > experts.groups:
        raise ConversionError(
            f"config.json: n_group is {experts.groups} and topk_group {experts.top_groups}; n_group must divide "
            f"n_routed_experts ({experts.count}), and topk_group must be at most n_group"
        )
    if experts.count // experts.groups < 2:
        raise ConversionError(
            f"config.json: n_group is {experts.groups}, of n_routed_experts {experts.count}; transformers scores a "
            f"group by its best two experts, so it needs at least two"
        )
    if experts.top_k > experts.top_groups * (experts.count // experts.groups):
        raise ConversionError(
            f"config.json: num_experts_per_tok is {experts.top_k}; the topk_group groups have only "
            f"{experts.top_groups * (experts.count // experts.groups)} experts"
        )
    heads, kv_heads = config.get("num_attention_heads"), config.get("num_key_value_heads")
    if kv_heads != heads:
        raise ConversionError(
            f"config.json: num_key_value_heads is {kv_heads}; with latent attention it must be num_attention_heads "
            f"({heads})"
        )
    if experts.groups > experts.top_groups and experts.top_k // experts.top_groups != 2:
        raise ConversionError(
            f"config.json: num_experts_per_tok is {experts.top_k} and topk_group {experts.top_groups}; transformers "
            f"scores a group by its best two experts and Megatron by its best num_experts_per_tok // topk_group, so "
            f"that must be 2"
        )
    return sizes(
        config,
        head_dim=latent.nope + latent.rope,
        attention_scale=_attention_scale(config, latent),
        experts=experts,
        latent=latent,
    )


def _attention_scale(config: Config, latent: Latent) -> float:
    """Return the scale of the scores, which YaRN's mscale_all_dim changes in this family only."""
    config.rope()  # raises ConversionError if a field is missing
    rope = config.get("rope_parameters")
    scaled = rope.get("rope_type", "default") != "default" and rope.get("mscale_all_dim")
    more = mscale(rope["factor"], rope["mscale_all_dim"]) ** 2 if scaled else 1.0
    return float((latent.nope + latent.rope) ** -0.5 * more)


def narrow(model: Architecture) -> bool:
    """Return whether queries come from a low-rank projection."""
    return model.latent is not None and model.latent.q_rank is not None


def shared(model: Architecture) -> bool:
    return model.experts is not None and model.experts.shared_ffn > 0


ATTENTION: Table = {
    "decoder.layers.*.input_layernorm.weight": same("model.layers.{layer}.input_layernorm.weight", "hidden"),
    "decoder.layers.*.self_attention.linear_q_proj.weight": same(
        "model.layers.{layer}.self_attn.q_proj.weight", "latent_queries", "hidden", when=lambda model: not narrow(model)
    ),
    "decoder.layers.*.self_attention.linear_q_down_proj.weight": same(
        "model.layers.{layer}.self_attn.q_a_proj.weight", "q_rank", "hidden", when=narrow
    ),
    "decoder.layers.*.self_attention.linear_q_up_proj.layer_norm_weight": same(
        "model.layers.{layer}.self_attn.q_a_layernorm.weight", "q_rank", when=narrow
    ),
    "decoder.layers.*.self_attention.linear_q_up_proj.weight": same(
        "model.layers.{layer}.self_attn.q_b_proj.weight", "latent_queries", "q_rank", when=narrow
    ),
    "decoder.layers.*.self_attention.linear_kv_down_proj.weight": same(
        "model.layers.{layer}.self_attn.kv_a_proj_with_mqa.weight", "kv_rank_and_rope", "hidden"
    ),
    "decoder.layers.*.self_attention.linear_kv_up_proj.layer_norm_weight": same(
        "model.layers.{layer}.self_attn.kv_a_layernorm.weight", "kv_rank"
    ),
    "decoder.layers.*.self_attention.linear_kv_up_proj.weight": same(
        "model.layers.{layer}.self_attn.kv_b_proj.weight", "latent_keys_values", "kv_rank"
    ),
    "decoder.layers.*.self_attention.linear_proj.weight": same(
        "model.layers.{layer}.self_attn.o_proj.weight", "hidden", "values"
    ),
}

DENSE: Table = {
    "decoder.layers.*.mlp.linear_fc1.layer_norm_weight": same(
        "model.layers.{layer}.post_attention_layernorm.weight", "hidden", layers="dense"
    ),
    "decoder.layers.*.mlp.linear_fc1.weight": gate_up(
        "model.layers.{layer}.mlp.gate_proj.weight", "model.layers.{layer}.mlp.up_proj.weight", layers="dense"
    ),
    "decoder.layers.*.mlp.linear_fc2.weight": same(
        "model.layers.{layer}.mlp.down_proj.weight", "hidden", "ffn", layers="dense"
    ),
}

EXPERTS: Table = {
    "decoder.layers.*.pre_mlp_layernorm.weight": same(
        "model.layers.{layer}.post_attention_layernorm.weight", "hidden", layers="experts"
    ),
    "decoder.layers.*.mlp.router.weight": same(
        "model.layers.{layer}.mlp.gate.weight", "experts", "hidden", layers="experts"
    ),
    "decoder.layers.*.mlp.router.expert_bias": same(
        "model.layers.{layer}.mlp.gate.e_score_correction_bias", "experts", layers="experts"
    ),
    "decoder.layers.*.mlp.experts.experts.linear_fc1.weight": gate_up(
        "model.layers.{layer}.mlp.experts.{expert}.gate_proj.weight",
        "model.layers.{layer}.mlp.experts.{expert}.up_proj.weight",
        "expert_ffn",
        layers="experts",
    ),
    "decoder.layers.*.mlp.experts.experts.linear_fc2.weight": same(
        "model.layers.{layer}.mlp.experts.{expert}.down_proj.weight", "hidden", "expert_ffn", layers="experts"
    ),
    "decoder.layers.*.mlp.shared_experts.linear_fc1.weight": gate_up(
        "model.layers.{layer}.mlp.shared_experts.gate_proj.weight",
        "model.layers.{layer}.mlp.shared_experts.up_proj.weight",
        "shared_ffn",
        layers="experts",
        when=shared,
    ),
    "decoder.layers.*.mlp.shared_experts.linear_fc2.weight": same(
        "model.layers.{layer}.mlp.shared_experts.down_proj.weight",
        "hidden",
        "shared_ffn",
        layers="experts",
        when=shared,
    ),
}

TABLE: Table = {
    "embedding.word_embeddings.weight": llama.TABLE["embedding.word_embeddings.weight"],
    **ATTENTION,
    **DENSE,
    **EXPERTS,
    "decoder.final_layernorm.weight": llama.TABLE["decoder.final_layernorm.weight"],
    "output_layer.weight": llama.TABLE["output_layer.weight"],
}


FAMILY = Family("deepseek_v3", "DeepseekV3ForCausalLM", read, TABLE)
