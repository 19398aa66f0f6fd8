"""Tiny models of every family with random weights, in the format of transformers. The sizes are unusual on purpose, so
that a mixed-up tensor has another shape, and no weight is zero or one, so that a missing one is noticed."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    DeepseekV3Config,
    Gemma2Config,
    Gemma3TextConfig,
    LlamaConfig,
    MistralConfig,
    MixtralConfig,
    Olmo2Config,
    PretrainedConfig,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
)

from baton.tasks.convert.architecture import Architecture
from baton.tasks.convert.families import family_of, read
from baton.tasks.convert.mapping import weights

VOCABULARY = 101
LENGTH = 48  # tokens in a test's text, longer than the attention windows below
WINDOW = 7

COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 72,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "head_dim": 16,  # 6 x 16 differs from 72
    "intermediate_size": 136,
    "max_position_embeddings": 64,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": 0,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
LINEAR = {"rope_type": "linear", "rope_theta": 5000.0, "factor": 2.5}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "beta_fast": 8.0,
    "beta_slow": 0.5,
    "original_max_position_embeddings": 32,
}
LATENT = {
    "head_dim": 6,  # in transformers' config, only the part with positions
    "num_key_value_heads": 6,
    "q_lora_rank": 40,
    "kv_lora_rank": 24,
    "qk_nope_head_dim": 10,
    "qk_rope_head_dim": 6,
    "v_head_dim": 14,
    "moe_intermediate_size": 28,
    "n_routed_experts": 12,
    "num_experts_per_tok": 4,
    "n_group": 4,
    "topk_group": 2,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
    "num_nextn_predict_layers": 0,
}
MIXTURE = {"moe_intermediate_size": 28, "num_experts": 10, "num_experts_per_tok": 3}

FAMILIES: dict[str, Callable[[], PretrainedConfig]] = {
    "llama": lambda: LlamaConfig(**COMMON),
    "llama-tied": lambda: LlamaConfig(**COMMON | {"tie_word_embeddings": True, "head_dim": 96}),
    "llama-llama3": lambda: LlamaConfig(**COMMON, rope_parameters=LLAMA3),
    "llama-linear": lambda: LlamaConfig(**COMMON, rope_parameters=LINEAR),
    "llama-yarn": lambda: LlamaConfig(**COMMON, rope_parameters=YARN | {"attention_factor": 1.25}),
    "llama-yarn-default": lambda: LlamaConfig(**COMMON, rope_parameters=YARN | {"truncate": False}),
    "mistral": lambda: MistralConfig(**COMMON, sliding_window=None),
    "mistral-window": lambda: MistralConfig(**COMMON, sliding_window=WINDOW),
    "mixtral": lambda: MixtralConfig(**COMMON, num_local_experts=5, num_experts_per_tok=2),
    "mixtral-window": lambda: MixtralConfig(**COMMON, num_local_experts=5, sliding_window=WINDOW),
    "qwen2": lambda: Qwen2Config(**COMMON, tie_word_embeddings=True),
    "qwen2-window": lambda: Qwen2Config(**COMMON, use_sliding_window=True, sliding_window=WINDOW, max_window_layers=1),
    "qwen3": lambda: Qwen3Config(**COMMON),
    "qwen3_moe": lambda: Qwen3MoeConfig(**COMMON, **MIXTURE, norm_topk_prob=True),
    "qwen3_moe-unnormalized": lambda: Qwen3MoeConfig(**COMMON, **MIXTURE, norm_topk_prob=False),
    "qwen3_moe-window": lambda: Qwen3MoeConfig(**COMMON, **MIXTURE, use_sliding_window=True, sliding_window=WINDOW),
    "gemma2": lambda: Gemma2Config(
        **COMMON,
        sliding_window=WINDOW,
        query_pre_attn_scalar=20,
        attn_logit_softcapping=5.0,
        final_logit_softcapping=9.0,
    ),
    "gemma3": lambda: Gemma3TextConfig(
        **COMMON | {"num_hidden_layers": 4},
        sliding_window=WINDOW,
        query_pre_attn_scalar=20,
        layer_types=["sliding_attention", "full_attention"] * 2,
        rope_parameters={
            "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        },
    ),
    "olmo2": lambda: Olmo2Config(**COMMON | {"head_dim": 12}),
    "deepseek_v3": lambda: DeepseekV3Config(**COMMON | LATENT),
    "deepseek_v3-wide-queries": lambda: DeepseekV3Config(**COMMON | LATENT | {"q_lora_rank": None}),
    "deepseek_v3-yarn": lambda: DeepseekV3Config(
        **COMMON | LATENT, rope_parameters=YARN | {"mscale": 1.0, "mscale_all_dim": 0.7}
    ),
}


def make(name: str, folder: Path, dtype: torch.dtype = torch.float32) -> Path:
    """Write config.json and safetensors of a model of FAMILIES, with the same weights every time."""
    torch.manual_seed(sorted(FAMILIES).index(name))
    model = AutoModelForCausalLM.from_config(FAMILIES[name]()).eval()
    with torch.no_grad():
        for key, weight in model.named_parameters():
            around = 1.0 if key.endswith("norm.weight") and not name.startswith("gemma") else 0.0
            weight.copy_(around + torch.randn_like(weight) * (0.3 if weight.ndim == 1 else weight.size(-1) ** -0.5))
            weight.data = weight.data.to(dtype)
        for key, buffer in model.named_buffers():
            if key.endswith("e_score_correction_bias"):  # always fp32 in files, as in transformers
                buffer.copy_(torch.randn_like(buffer) * 0.1)
    model.config.dtype = dtype
    model.save_pretrained(folder)
    return folder


def architecture(folder: Path) -> Architecture:
    """Read a model's config as the converter does, with Transformers' defaults."""
    return read(AutoConfig.from_pretrained(folder).to_dict())


def megatron_weights(folder: Path) -> dict[tuple[str, int | None, int | None], Tensor]:
    """Return the weights of a model in Megatron's layout, by name in the family's table, layer and expert."""
    theirs = load_file(folder / "model.safetensors")
    family = family_of(AutoConfig.from_pretrained(folder).to_dict())
    ours = {}
    for weight in weights(family.table, architecture(folder)):
        parts = [theirs[name] for name, _ in weight.parts]
        rows = [parts[segment.part][segment.start : segment.stop] for segment in weight.segments]
        ours[weight.rule, weight.layer, weight.expert] = torch.cat(rows)
    return ours


def text(rows: int = 2) -> Tensor:
    """Return random tokens of shape (rows, LENGTH)."""
    return torch.randint(VOCABULARY, (rows, LENGTH), generator=torch.Generator().manual_seed(0))
