"""Gemma 3, text: Gemma 2 with norms on queries and keys, and two rotary bases (Kamath et al. 2025)."""

from baton.tasks.convert.architecture import Architecture
from baton.tasks.convert.config import Config
from baton.tasks.convert.families import gemma2, qwen3
from baton.tasks.convert.families.family import Family, sizes
from baton.tasks.convert.mapping import Table
from baton.tasks.models.errors import ConversionError
from baton.tasks.models.fields import shown


def read(config: Config) -> Architecture:
    config.ignore("_sliding_window_pattern", "sliding_window_pattern")  # layer_types has the same information
    if config.get("attn_logit_softcapping", None) is not None:
        raise ConversionError(
            f"config.json: attn_logit_softcapping is {shown(config.get('attn_logit_softcapping'))}; transformers and "
            f"vLLM do not apply it in this family: set it to null"
        )
    unknown = config.get("rope_parameters").keys() - {"full_attention", "sliding_attention"}
    if unknown:
        raise ConversionError(
            f"config.json: rope_parameters has {', '.join(sorted(unknown))}; this family reads only its "
            f"full_attention and sliding_attention"
        )
    for kind in ("full_attention", "sliding_attention"):
        if not config.rope(kind).truncate:  # transformers looks it up one level higher, and defaults to true
            raise ConversionError(
                f"config.json: rope_parameters.{kind}.truncate is False; transformers reads only True for this family"
            )
    return sizes(
        config,
        **gemma2.gemma(config),
        qk_norm="head",
        rope=config.rope("full_attention"),
        local_rope=config.rope("sliding_attention"),
    )


TABLE: Table = {
    **gemma2.TABLE,
    **{name: rule for name, rule in qwen3.TABLE.items() if name.endswith(("q_layernorm.weight", "k_layernorm.weight"))},
}

FAMILY = Family("gemma3_text", "Gemma3ForCausalLM", read, TABLE)
