"""Check the types and bounds of config.json's fields before Transformers or a family reads them.

Fields that are not listed here are not computed with: `Config.only` or Transformers checks them, or `Config.finish`
rejects them.
"""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from baton.infra.storage.unique_keys import strict_json
from baton.tasks.models.errors import ConversionError

Size = Annotated[int, Field(ge=1, le=2**24)] | None
Heads = Annotated[int, Field(ge=1, le=4096)] | None
Layers = Annotated[int, Field(ge=1, le=1024)] | None
Count = Annotated[int, Field(ge=0, le=4096)] | None
Positions = Annotated[int, Field(ge=1, lt=2**31)] | None
Token = Annotated[int, Field(gt=-(2**31), lt=2**31)]
Positive = Annotated[float, Field(gt=0, le=1e6)] | None
Theta = Annotated[float, Field(gt=1, le=1e15)] | None
Fraction = Annotated[float, Field(ge=0, le=1)] | None


class _Typed(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False, protected_namespaces=())


class _Fields(_Typed):
    """The fields of all families. A name has the same meaning in each."""

    architectures: list[str] | None = None
    bos_token_id: Token | None = None
    eos_token_id: Token | list[Token] | None = None
    pad_token_id: Token | None = None
    initializer_range: Fraction = None
    attention_dropout: Fraction = None

    vocab_size: Size = None
    hidden_size: Size = None
    intermediate_size: Size = None
    num_hidden_layers: Layers = None
    num_attention_heads: Heads = None
    num_key_value_heads: Heads = None
    head_dim: Size = None
    max_position_embeddings: Positions = None
    rms_norm_eps: Annotated[float, Field(gt=0, le=1)] | None = None
    tie_word_embeddings: bool | None = None

    sliding_window: Positions = None
    use_sliding_window: bool | None = None
    max_window_layers: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    sliding_window_pattern: Positions = None
    layer_types: list[Literal["full_attention", "sliding_attention"]] | None = None

    rope_theta: Theta = None
    rope_local_base_freq: Theta = None
    rope_parameters: dict[str, Any] | None = None  # see _Rope
    rope_scaling: dict[str, Any] | None = None

    query_pre_attn_scalar: Positive = None
    attn_logit_softcapping: Positive = None
    final_logit_softcapping: Positive = None

    num_experts: Heads = None
    num_local_experts: Heads = None
    n_routed_experts: Heads = None
    num_experts_per_tok: Heads = None
    moe_intermediate_size: Size = None
    norm_topk_prob: bool | None = None
    n_shared_experts: Count = None
    n_group: Heads = None
    topk_group: Heads = None
    routed_scaling_factor: Positive = None
    first_k_dense_replace: Count = None

    q_lora_rank: Size = None
    kv_lora_rank: Size = None
    qk_nope_head_dim: Size = None
    qk_rope_head_dim: Size = None
    v_head_dim: Size = None


class _Rope(_Typed):
    """The fields of rope_parameters, or rope_scaling, its older name."""

    rope_type: str | None = None
    type: str | None = None
    rope_theta: Theta = None
    factor: Positive = None
    original_max_position_embeddings: Positions = None
    low_freq_factor: Positive = None
    high_freq_factor: Positive = None
    beta_fast: Positive = None
    beta_slow: Positive = None
    attention_factor: Positive = None
    mscale: Annotated[float, Field(ge=0, le=1e6)] | None = None
    mscale_all_dim: Annotated[float, Field(ge=0, le=1e6)] | None = None
    truncate: bool | None = None


def check_types(fields: dict[str, Any]) -> None:
    """Raise ConversionError with every field that has the wrong type or is out of bounds."""
    problems = _problems(_Fields, fields, "")
    for name in ("rope_parameters", "rope_scaling"):
        rope = fields.get(name)
        if isinstance(rope, dict):
            problems += _problems(_Rope, rope, f"{name}.")
            for kind, value in rope.items():  # one dict for each type of layer
                problems += _problems(_Rope, value, f"{name}.{kind}.") if isinstance(value, dict) else []
    if problems:
        raise ConversionError(f"config.json: {'; '.join(problems)}")


class _Generation(_Typed):
    """The fields of generation_config.json that vLLM reads, with the values that it allows."""

    eos_token_id: int | Annotated[list[int], Field(min_length=1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0)] | None = None
    max_new_tokens: Annotated[int, Field(ge=1)] | None = None


def generation_problems(fields: dict[str, Any]) -> list[str]:
    """Return problems of the content of a generation_config.json that vLLM would report only at its first request."""
    return [
        f"{problem}: correct or remove it" for problem in _problems(_Generation, fields, "generation_config.json: ")
    ]


# Fields of generation_config.json that affect the tokens that Transformers generates, and that vLLM does not read
_TRANSFORMERS_ALONE = (
    "bad_words_ids", "begin_suppress_tokens", "encoder_repetition_penalty", "epsilon_cutoff", "eta_cutoff",
    "exponential_decay_length_penalty", "forced_bos_token_id", "forced_eos_token_id", "guidance_scale", "min_length",
    "min_new_tokens", "no_repeat_ngram_size", "num_beams", "penalty_alpha", "sequence_bias", "stop_strings",
    "suppress_tokens", "top_h", "typical_p",
)  # fmt: skip


def generation_notices(fields: dict[str, Any]) -> list[str]:
    """Return a notice about the settings of a generation_config.json that vLLM does not apply, if it has any."""
    given = [
        f"{name} {shown(fields[name])}" for name in _TRANSFORMERS_ALONE if fields.get(name) not in (None, 0, 1, [])
    ]
    return [
        f"generation_config.json has {', '.join(given)}, which Transformers applies and vLLM does not: the model is "
        "evaluated and served without"
    ] * bool(given)


def _problems(model: type[BaseModel], fields: dict[str, Any], prefix: str) -> list[str]:
    try:
        model.model_validate(fields)
    except ValidationError as error:
        problems: dict[str, str] = {}
        for detail in error.errors(include_url=False):
            name, *path = detail["loc"]
            index = "".join(f"[{step}]" for step in path if isinstance(step, int))  # other steps are union branches
            allowed = detail["msg"].replace("Input should", "it should")
            problems.setdefault(f"{prefix}{name}{index}", f"is {shown(detail['input'])}; {allowed}")
        # For a list with a wrong item, the union's other branches report that the list is not a number.
        items = {name.partition("[")[0] for name in problems if "[" in name}
        return [f"{name} {problem}" for name, problem in problems.items() if name not in items]
    return []


def shown(value: object) -> str:
    """Return a value for an error message, truncated to 80 characters."""
    try:
        text = repr(value)
    except ValueError:  # Python does not print integers of more than 4,300 digits
        text = f"a {type(value).__name__} of many digits"
    return text if len(text) <= 80 else f"{text[:77]}..."


def read_json(path: Path) -> dict[str, Any]:
    """Read a file with one JSON object. Raises ConversionError."""
    try:
        fields = strict_json(path.read_bytes())
        if not isinstance(fields, dict):
            raise ValueError(f"it is a {type(fields).__name__}, not an object")
    except (OSError, ValueError, RecursionError) as error:
        raise ConversionError(f"{path}: cannot be read ({error})") from error
    return fields
