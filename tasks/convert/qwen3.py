"""Qwen3, dense: the map from Megatron-Core's weight names to Hugging Face's.

Megatron's names are those of GPTModel.state_dict() with the local layer spec; Hugging Face's those
of Qwen3ForCausalLM. Each function returns exactly the tensors of its targets, in their order.
"""

import re
from collections.abc import Callable

from torch import Tensor
from transformers import PretrainedConfig, Qwen3Config

from tasks.pretrain.model_spec import ModelSpec

Split = Callable[[Tensor, ModelSpec], tuple[Tensor, ...]]


def same(weight: Tensor, model: ModelSpec) -> tuple[Tensor, ...]:
    return (weight,)


def split_qkv(weight: Tensor, model: ModelSpec) -> tuple[Tensor, ...]:
    """Megatron interleaves by group: r queries, one key, one value, for each of kv_heads groups."""
    queries = model.heads // model.kv_heads
    grouped = weight.view(model.kv_heads, queries + 2, model.head_dim, model.hidden)
    parts = grouped.split((queries, 1, 1), dim=1)
    return tuple(part.reshape(-1, model.hidden) for part in parts)


def split_gate_up(weight: Tensor, model: ModelSpec) -> tuple[Tensor, ...]:
    """Megatron's SwiGLU stacks the gate on the up projection."""
    return weight.chunk(2)


WEIGHTS: dict[str, tuple[Split, tuple[str, ...]]] = {
    "embedding.word_embeddings.weight": (same, ("model.embed_tokens.weight",)),
    "decoder.final_layernorm.weight": (same, ("model.norm.weight",)),
    "output_layer.weight": (same, ("lm_head.weight",)),
}

LAYER_WEIGHTS: dict[str, tuple[Split, tuple[str, ...]]] = {
    "input_layernorm.weight": (same, ("input_layernorm.weight",)),
    "self_attention.linear_qkv.weight": (
        split_qkv,
        ("self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight"),
    ),
    "self_attention.q_layernorm.weight": (same, ("self_attn.q_norm.weight",)),
    "self_attention.k_layernorm.weight": (same, ("self_attn.k_norm.weight",)),
    "self_attention.linear_proj.weight": (same, ("self_attn.o_proj.weight",)),
    "pre_mlp_layernorm.weight": (same, ("post_attention_layernorm.weight",)),
    "mlp.linear_fc1.weight": (split_gate_up, ("mlp.gate_proj.weight", "mlp.up_proj.weight")),
    "mlp.linear_fc2.weight": (same, ("mlp.down_proj.weight",)),
}

_LAYER = re.compile(r"decoder\.layers\.(\d+)\.(.+)")


def targets(source: str) -> tuple[Split, tuple[str, ...]] | None:
    """How a Megatron weight is split and what its parts are called; None when it is not known."""
    match = _LAYER.fullmatch(source)
    if not match:
        return WEIGHTS.get(source)
    number, name = match.groups()
    if name not in LAYER_WEIGHTS:
        return None
    split, names = LAYER_WEIGHTS[name]
    return split, tuple(f"model.layers.{number}.{target}" for target in names)


def config(model: ModelSpec, vocab_size: int, eos_id: int, pad_id: int) -> PretrainedConfig:
    """The same model in Hugging Face's words."""
    return Qwen3Config(
        vocab_size=vocab_size,
        hidden_size=model.hidden,
        intermediate_size=model.ffn_hidden,
        num_hidden_layers=model.layers,
        num_attention_heads=model.heads,
        num_key_value_heads=model.kv_heads,
        head_dim=model.head_dim,
        max_position_embeddings=model.max_positions,
        initializer_range=model.init_std,
        rms_norm_eps=model.norm_eps,
        tie_word_embeddings=model.tied_embeddings,
        rope_parameters={"rope_type": "default", "rope_theta": model.rope_theta},
        attention_bias=False,
        attention_dropout=0.0,
        use_sliding_window=False,
        bos_token_id=None,
        eos_token_id=eos_id,
        pad_token_id=pad_id,
    )
