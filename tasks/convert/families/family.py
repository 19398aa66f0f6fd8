"""What a family is to the converter."""

from collections.abc import Callable
from dataclasses import dataclass

from tasks.convert.architecture import Architecture
from tasks.convert.config import Config
from tasks.convert.errors import ConversionError
from tasks.convert.mapping import Table


@dataclass(frozen=True)
class Family:
    """One file in this folder."""

    model_type: str  # in config.json
    architecture: str  # transformers' class
    read: Callable[[Config], Architecture]
    table: Table


def sizes(config: Config, **more: object) -> Architecture:
    """What every family's config says in the same words, and `more`."""
    heads = config.get("num_attention_heads")
    hidden = config.get("hidden_size")
    kv_heads = config.get("num_key_value_heads", heads)
    for name, least in (("num_attention_heads", heads), ("num_key_value_heads", kv_heads), ("hidden_size", hidden)):
        if not isinstance(least, int) or least < 1:
            raise ConversionError(f"config.json: {name} is {least!r}; a whole number from 1 is wanted")
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
    return Architecture(**fields)


def silu(config: Config) -> None:
    """The activation of most families."""
    config.only("hidden_act", "silu", "swish")


def windows(config: Config) -> tuple[int | None, ...]:
    """Each layer's sliding window, by `layer_types`."""
    types = config.get("layer_types", ["full_attention"] * config.get("num_hidden_layers"))
    window = config.get("sliding_window", None)
    return tuple(window if kind == "sliding_attention" else None for kind in types)


def one_window(config: Config) -> tuple[int | None, ...]:
    """The sliding window that all layers have."""
    window: int | None = config.get("sliding_window", None)
    return (window,) * int(config.get("num_hidden_layers"))
