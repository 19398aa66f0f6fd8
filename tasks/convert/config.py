"""Read a Hugging Face config so that nothing in it is passed over.

A family's `read` asks for each field by name. What it has not asked for, and what says nothing about
weights or forward pass, is an error: such a field may change the model in a way that Megatron would
not know of.
"""

import math
from typing import Any

from tasks.convert.architecture import Rope
from tasks.convert.errors import ConversionError
from tasks.convert.fields import shown

# Fields of transformers' base class and of its configs that touch neither weights nor forward pass
FREE = frozenset({
    "architectures", "model_type", "transformers_version", "dtype", "torch_dtype", "_name_or_path",
    "bos_token_id", "eos_token_id", "pad_token_id", "use_cache", "initializer_range", "attention_dropout",
    "output_attentions", "output_hidden_states", "return_dict", "id2label", "label2id", "problem_type",
    "pretraining_tp", "cache_implementation", "_attn_implementation",
})  # fmt: skip
_MUST_BE = {"is_encoder_decoder": False, "chunk_size_feed_forward": 0}
_REQUIRED = object()


class Config:
    """A config.json that remembers which of its fields were asked for."""

    def __init__(self, fields: dict[str, Any]) -> None:
        self.fields = fields
        self._asked = set(FREE)
        for name, value in _MUST_BE.items():
            self.only(name, value)

    def get(self, name: str, default: Any = _REQUIRED) -> Any:
        """A field's value; `default` when it is not there, or null."""
        self._asked.add(name)
        value = self.fields.get(name)
        if value is not None:
            return value
        if default is _REQUIRED:
            raise ConversionError(
                f"config.json: {name} is missing; model_type {self.fields.get('model_type')} needs it"
            )
        return default

    def only(self, name: str, *allowed: Any) -> None:
        """A field that must have one of these values, if it is there at all."""
        self._asked.add(name)
        value = self.fields.get(name)
        if value is not None and not any(value == each and type(value) is type(each) for each in allowed):
            words = " or ".join(repr(each) for each in allowed)
            raise ConversionError(f"config.json: {name} is {shown(value)}; the converter supports only {words}")

    def ignore(self, *names: str) -> None:
        """Fields that matter only in training, or repeat others."""
        self._asked |= set(names)

    def rope(self, name: str | None = None) -> Rope:
        """The rotary embedding: of the whole model, or of the layers of one type."""
        fields = self.get("rope_parameters")
        if name is None:
            return rope(fields)
        if not isinstance(fields.get(name), dict):
            raise ConversionError(
                f"config.json: rope_parameters.{name} is {shown(fields.get(name))}; this family needs rope_parameters "
                f"of its own for full_attention and for sliding_attention"
            )
        return rope(fields[name])

    def finish(self) -> None:
        """Raises ConversionError for every field that nobody has asked for."""
        unknown = {name: value for name, value in self.fields.items() if name not in self._asked}
        if unknown:
            words = ", ".join(f"{name} = {shown(value)}" for name, value in sorted(unknown.items()))
            raise ConversionError(
                f"config.json: the converter does not know {words}. A field that it dropped could change the model: "
                f"teach tasks/convert/families/ what it means, or take it out if it means nothing"
            )


_ROPE_FIELDS: dict[str, dict[str, str]] = {
    "default": {},
    "linear": {"factor": "factor"},
    "llama3": {
        "factor": "factor",
        "low_freq_factor": "low_frequency",
        "high_freq_factor": "high_frequency",
        "original_max_position_embeddings": "original_positions",
    },
    "yarn": {
        "factor": "factor",
        "original_max_position_embeddings": "original_positions",
        "beta_fast": "beta_fast",
        "beta_slow": "beta_slow",
        "attention_factor": "attention_factor",
        "truncate": "truncate",
    },
}  # fmt: skip


_ROPE_OPTIONAL = ("beta_fast", "beta_slow", "attention_factor", "truncate")


def rope(fields: dict[str, Any]) -> Rope:
    """transformers' rope_parameters as a Rope; types and bounds are checked already."""
    fields = {name: value for name, value in fields.items() if value is not None}
    kind = fields.pop("rope_type", "default")
    fields.pop("type", None)  # its older name
    if kind not in _ROPE_FIELDS:
        raise ConversionError(
            f"config.json: rope_type is {shown(kind)}; the converter supports {', '.join(_ROPE_FIELDS)}"
        )
    known = _ROPE_FIELDS[kind]
    missing = [name for name in ("rope_theta", *known) if name not in fields and name not in _ROPE_OPTIONAL]
    if missing:
        raise ConversionError(
            f"config.json: rope_parameters of rope_type {kind} lack {', '.join(missing)} (or have null); a number is "
            f"needed"
        )
    theta = fields.pop("rope_theta")
    if kind == "yarn":
        fields["attention_factor"] = _attention_factor(fields)
    unknown = fields.keys() - known
    if unknown:
        words = ", ".join(f"{name} = {shown(fields[name])}" for name in sorted(unknown))
        raise ConversionError(f"config.json: the converter does not know what {words} means to rope_type {kind}")
    found = Rope(theta=theta, scaling=kind, **{known[name]: value for name, value in fields.items()})
    if kind == "llama3" and found.high_frequency <= found.low_frequency:
        raise ConversionError(
            f"config.json: rope_parameters.high_freq_factor is {found.high_frequency}; it should be greater than "
            f"low_freq_factor ({found.low_frequency})"
        )
    return found


def mscale(factor: float, weight: float = 1.0) -> float:
    """YaRN's factor of the scores (Peng et al. 2023, section 3.4); the weight is DeepSeek's."""
    return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0


def _attention_factor(fields: dict[str, Any]) -> float:
    """YaRN's factor of cosines and sines, as transformers works it out; takes out the fields that say it in
    another way."""
    one, all_dims = fields.pop("mscale", None), fields.pop("mscale_all_dim", None)
    if "attention_factor" in fields:
        return float(fields["attention_factor"])
    factor = fields["factor"]
    return mscale(factor, one) / mscale(factor, all_dims) if one and all_dims else mscale(factor)
