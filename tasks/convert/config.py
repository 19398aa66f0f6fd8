"""Read a Hugging Face config without ignoring any field.

A family's `read` looks up each field by name. A field that was not looked up and may affect weights or forward pass is
an error, since it could change the model in a way that Megatron does not implement.
"""

import math
from typing import Any

from baton.tasks.convert.architecture import Rope
from baton.tasks.models.errors import ConversionError
from baton.tasks.models.fields import shown

# Fields of transformers' configs that affect neither weights nor forward pass
FREE = frozenset({
    "architectures", "model_type", "transformers_version", "dtype", "torch_dtype", "_name_or_path",
    "bos_token_id", "eos_token_id", "pad_token_id", "use_cache", "initializer_range", "attention_dropout",
    "output_attentions", "output_hidden_states", "return_dict", "id2label", "label2id", "problem_type",
    "pretraining_tp", "cache_implementation", "_attn_implementation",
})  # fmt: skip
_MUST_BE = {"is_encoder_decoder": False, "chunk_size_feed_forward": 0}
_REQUIRED = object()


class Config:
    """A config.json that keeps track of the fields that were read."""

    def __init__(self, fields: dict[str, Any]) -> None:
        self.fields = fields
        self._read = set(FREE)
        for name, value in _MUST_BE.items():
            self.only(name, value)

    def get(self, name: str, default: Any = _REQUIRED) -> Any:
        """Return a field's value, or `default` if it is missing or null."""
        self._read.add(name)
        value = self.fields.get(name)
        if value is not None:
            return value
        if default is _REQUIRED:
            raise ConversionError(
                f"config.json: {name} is missing; model_type {self.fields.get('model_type')} requires it"
            )
        return default

    def only(self, name: str, *allowed: Any) -> None:
        """Require one of these values if the field is present. Raises ConversionError."""
        self._read.add(name)
        value = self.fields.get(name)
        if value is not None and not any(value == item and type(value) is type(item) for item in allowed):
            supported = " or ".join(map(repr, allowed))
            raise ConversionError(f"config.json: {name} is {shown(value)}; the converter supports only {supported}")

    def ignore(self, *names: str) -> None:
        """Ignore fields that affect only training or repeat others."""
        self._read |= set(names)

    def rope(self, name: str | None = None) -> Rope:
        """Return the rotary embedding of the model, or of one type of layers."""
        fields = self.get("rope_parameters")
        if name is None:
            return rope(fields)
        if not isinstance(fields.get(name), dict):
            raise ConversionError(
                f"config.json: rope_parameters.{name} is {shown(fields.get(name))}; this family requires separate "
                f"rope_parameters for full_attention and sliding_attention"
            )
        return rope(fields[name])

    def finish(self) -> None:
        """Raise ConversionError if any field was not read."""
        unknown = {name: value for name, value in self.fields.items() if name not in self._read}
        if unknown:
            fields = ", ".join(f"{name} = {shown(value)}" for name, value in sorted(unknown.items()))
            raise ConversionError(
                f"config.json: the converter does not know {fields}. Ignoring a field could change the model: "
                f"implement it in tasks/convert/families/, or remove it if it has no effect"
            )


_ROPE_OPTIONAL = ("beta_fast", "beta_slow", "attention_factor", "truncate")
_ROPE_FIELDS: dict[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "yarn": ("factor", "original_max_position_embeddings", *_ROPE_OPTIONAL),
}


def rope(fields: dict[str, Any]) -> Rope:
    """Convert transformers' rope_parameters, whose types and bounds were checked, to a Rope."""
    fields = {name: value for name, value in fields.items() if value is not None}
    kind = fields.pop("rope_type", "default")
    fields.pop("type", None)  # rope_type's older name
    if kind not in _ROPE_FIELDS:
        raise ConversionError(
            f"config.json: rope_type is {shown(kind)}; the converter supports {', '.join(_ROPE_FIELDS)}"
        )
    known = _ROPE_FIELDS[kind]
    missing = [name for name in ("rope_theta", *known) if name not in fields and name not in _ROPE_OPTIONAL]
    if missing:
        raise ConversionError(
            f"config.json: rope_parameters of rope_type {kind} lack {', '.join(missing)} (or they are null); a number "
            f"is required"
        )
    theta = fields.pop("rope_theta")
    if kind == "yarn":
        fields["attention_factor"] = _attention_factor(fields)
    unknown = fields.keys() - known
    if unknown:
        listed = ", ".join(f"{name} = {shown(fields[name])}" for name in sorted(unknown))
        raise ConversionError(f"config.json: the converter does not know what {listed} means for rope_type {kind}")
    result = Rope(theta=theta, scaling=kind, **fields)
    if kind == "llama3" and result.high_freq_factor <= result.low_freq_factor:
        raise ConversionError(
            f"config.json: rope_parameters.high_freq_factor is {result.high_freq_factor}; it must be greater than "
            f"low_freq_factor ({result.low_freq_factor})"
        )
    return result


def mscale(factor: float, weight: float = 1.0) -> float:
    """Return YaRN's scale of the attention scores (Peng et al. 2023, section 3.4). `weight` is DeepSeek's extension."""
    return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0


def _attention_factor(fields: dict[str, Any]) -> float:
    """Return YaRN's scale of cosines and sines, as transformers computes it. Removes mscale and mscale_all_dim, another
    form of the scale, from `fields`."""
    one, all_dims = fields.pop("mscale", None), fields.pop("mscale_all_dim", None)
    if "attention_factor" in fields:
        return float(fields["attention_factor"])
    factor = fields["factor"]
    return mscale(factor, one) / mscale(factor, all_dims) if one and all_dims else mscale(factor)
