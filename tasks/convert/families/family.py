"""The definition of a model family, and config fields that families share."""

from collections.abc import Callable
from dataclasses import dataclass

from baton.tasks.convert.architecture import Architecture
from baton.tasks.convert.config import Config
from baton.tasks.convert.mapping import Table
from baton.tasks.models.errors import ConversionError


@dataclass(frozen=True)
class Family:
    """A model family."""

    model_type: str  # in config.json
    architecture: str  # transformers' class name
    read: Callable[[Config], Architecture]
    table: Table


def sizes(config: Config, **more: object) -> Architecture:
    """Return an Architecture from the fields that all families share, and `more`."""
    heads = config.get("num_attention_heads")
    hidden = config.get("hidden_size")
    kv_heads = config.get("num_key_value_heads", heads)
    if heads % kv_heads:
        raise ConversionError(
            f"config.json: num_attention_heads is {heads}, which num_key_value_heads {kv_heads} does not divide"
        )
    config.only("attention_bias", False)
    config.only("mlp_bias", False)
    fields = {
        "vocab": config.get("vocab_size"),
        "layers": config.get("num_hidden_layers"),
        "hidden": hidden,
        "heads": heads,
        "kv_heads": kv_heads,
        "head_dim": config.get("head_dim", hidden // heads),
        "ffn": config.get("intermediate_size"),
        "max_positions": config.get("max_position_embeddings"),
        "norm_eps": config.get("rms_norm_eps"),
        "tied": config.get("tie_word_embeddings", False),
        **more,
    }
    if "rope" not in more:
        fields["rope"] = config.rope()
    model = Architecture(**fields)
    size, name = (model.latent.rope, "qk_rope_head_dim") if model.latent else (model.head_dim, "head_dim")
    if size % 2:
        raise ConversionError(f"config.json: {name} is {size}; it must be even: rotary embeddings rotate pairs")
    if model.experts and model.experts.top_k > model.experts.count:
        raise ConversionError(
            f"config.json: num_experts_per_tok is {model.experts.top_k}; it must be at most the number of experts "
            f"({model.experts.count})"
        )
    return model


def silu(config: Config) -> None:
    """Require SiLU, the activation of most families."""
    config.only("hidden_act", "silu", "swish")


def windows(config: Config) -> tuple[int | None, ...]:
    """Return each layer's sliding window, by `layer_types`."""
    layers = config.get("num_hidden_layers")
    types = config.get("layer_types", ["full_attention"] * layers)
    window = config.get("sliding_window", None)
    if len(types) != layers:
        raise ConversionError(
            f"config.json: layer_types has {len(types)} entries; num_hidden_layers ({layers}) are required"
        )
    if "sliding_attention" in types and window is None:
        raise ConversionError(
            "config.json: sliding_window is null, but layer_types has sliding_attention; set it to a number of tokens"
        )
    return tuple(window if kind == "sliding_attention" else None for kind in types)


def one_window(config: Config) -> tuple[int | None, ...]:
    """Return the same sliding window for all layers."""
    window: int | None = config.get("sliding_window", None)
    return (window,) * int(config.get("num_hidden_layers"))
