"""Convert a pretrain ModelSpec to a Hugging Face config, and an imported architecture to a ModelSpec."""

import dataclasses
from typing import Any

from pydantic import ValidationError
from transformers import AutoConfig

from baton.tasks.convert.architecture import Architecture
from baton.tasks.convert.families import FAMILIES, read
from baton.tasks.convert.spec import unexportable
from baton.tasks.models.errors import ConversionError
from baton.tasks.models.fields import shown
from baton.tasks.models.model_spec import FAMILIES as SHAPES
from baton.tasks.models.model_spec import ModelSpec

LLAMA3_POSITIONS = 8192  # Megatron-Core hard-codes these values for its Llama 3 rotary scaling
LLAMA3_FREQUENCIES = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}


def config_fields(model: ModelSpec, vocab_size: int, **tokens: int | None) -> dict[str, Any]:
    """Return config.json of a model that Baton trained, with its family's defaults. `tokens`: eos_token_id and other
    ids of the tokenizer. Raises ConversionError."""
    problems = unexportable(model)
    if problems:
        raise ConversionError("; ".join(map(str, problems)))
    fields: dict[str, Any] = {
        "vocab_size": vocab_size,
        "hidden_size": model.hidden,
        "intermediate_size": model.ffn_hidden,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv_heads,
        "head_dim": model.head_dim,
        "max_position_embeddings": model.max_positions,
        "initializer_range": model.init_std,
        "rms_norm_eps": model.norm_eps,
        "tie_word_embeddings": model.tied_embeddings,
        "rope_parameters": _rope(model),
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
        **tokens,
    }
    if model.shape().sliding_window:
        fields["sliding_window"] = model.sliding_window
    if model.experts and model.family == "qwen3_moe":
        fields |= {
            "num_local_experts": model.experts.count,
            "num_experts_per_tok": model.experts.top_k,
            "moe_intermediate_size": model.experts.ffn_hidden,
            "norm_topk_prob": model.experts.normalize_top_k,
        }
    if model.experts and model.family == "mixtral":
        fields |= {
            "num_local_experts": model.experts.count,
            "num_experts_per_tok": model.experts.top_k,
            "intermediate_size": model.experts.ffn_hidden,
        }
    config = AutoConfig.for_model(model.family, architectures=[FAMILIES[model.family].architecture], **fields)
    result: dict[str, Any] = config.to_dict()
    return result


def _rope(model: ModelSpec) -> dict[str, Any]:
    if model.rope_scaling_factor is None:
        return {"rope_type": "default", "rope_theta": model.rope_theta}
    return {
        "rope_type": "llama3",
        "rope_theta": model.rope_theta,
        "factor": model.rope_scaling_factor,
        "original_max_position_embeddings": LLAMA3_POSITIONS,
        **LLAMA3_FREQUENCIES,
    }


class Untrainable(ConversionError):
    """Raised if the converter supports a model but `pretrain` has no spec for it, so that it gets no model.json."""


def model_spec(family: str, model: Architecture) -> ModelSpec:
    """Return the model as a `pretrain` spec. Raises Untrainable with all properties that a spec cannot describe."""
    experts = model.experts and {
        "count": model.experts.count,
        "top_k": model.experts.top_k,
        "ffn_hidden": model.experts.ffn,
        "normalize_top_k": model.experts.normalized,
    }
    shape = SHAPES.get(family)
    if shape is None:
        raise Untrainable(f"family is {family}; `pretrain` trains {', '.join(SHAPES)}")
    try:
        spec = ModelSpec.model_validate({
            "family": family,
            "layers": model.layers,
            "hidden": model.hidden,
            "heads": model.heads,
            "kv_heads": model.kv_heads,
            "head_dim": model.head_dim,
            "ffn_hidden": model.ffn,
            "experts": experts,
            "max_positions": model.max_positions,
            "sliding_window": model.window(0) if shape.sliding_window else None,
            "rope_theta": model.rope.theta,
            "rope_scaling_factor": model.rope.factor if model.rope.scaling == "llama3" else None,
            "norm_eps": model.norm_eps,
            "vocab_size": model.vocab,
            "tied_embeddings": model.tied,
        })  # fmt: skip
    except ValidationError as error:
        errors = [f"{'.'.join(map(str, item['loc']))} is {item['input']!r}: {item['msg']}" for item in error.errors()]
        raise Untrainable("; ".join(errors)) from error
    problems = spec.problems() + unexportable(spec)
    if problems:
        raise Untrainable("; ".join(map(str, problems)))
    described = read(config_fields(spec, model.vocab))
    different = [
        f"{field.name} is {getattr(model, field.name)!r}, but a spec can only be {getattr(described, field.name)!r}"
        for field in dataclasses.fields(model)
        if field.name != "windows" and getattr(model, field.name) != getattr(described, field.name)
    ]
    windows = [model.window(layer) for layer in range(model.layers)]
    if windows != [described.window(layer) for layer in range(model.layers)]:
        different.append(f"the layers' sliding windows are {shown(windows)}")
    if different:
        raise Untrainable("; ".join(different))
    return spec
