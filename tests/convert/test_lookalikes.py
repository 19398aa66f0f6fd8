"""A field of config.json counts for the converter if and only if it counts for Transformers, which carries fields that
it does not apply (gemma3's attn_logit_softcapping), and applies some that appear to follow from others (deepseek_v3's
head_dim)."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from baton.tasks.convert.architecture import Architecture
from baton.tasks.convert.config import FREE
from baton.tasks.convert.families import family_of, read
from baton.tasks.convert.mapping import weights
from tests.convert.models import FAMILIES, text

# no effect on the logits of these models, or none beyond a limit
NO_EFFECT = {
    "max_position_embeddings",
    "intermediate_size",  # qwen3_moe has no dense layers here
    "rope_parameters.beta_fast",  # rounded to an integer, as are the next two
    "rope_parameters.beta_slow",
    "rope_parameters.original_max_position_embeddings",
}
KINDS = (
    "llama-yarn-default",
    "qwen2-window",
    "qwen3_moe",
    "mixtral-window",
    "gemma2",
    "gemma3",
    "olmo2",
    "deepseek_v3",
)


def changes(fields: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Generate a config for each field, with another value of its type."""
    for name, value in fields.items():
        if isinstance(value, dict):
            for inner, changed in changes(value, f"{prefix}{name}."):
                yield inner, fields | {name: changed}
        elif isinstance(value, bool | int | float) or value is None:
            other = not value if isinstance(value, bool) else 2 * value if value else 0.7
            yield f"{prefix}{name}", fields | {name: other}


def shape(model: Architecture) -> Architecture:
    """Remove the differences that do not affect the result of a model."""
    return replace(model, windows=tuple(model.window(layer) for layer in range(model.layers)))


@pytest.mark.parametrize("kind", KINDS)
def test_a_field_counts_if_and_only_if_transformers_applies_it(kind: str) -> None:
    fields = FAMILIES[kind]().to_dict()
    table, before = family_of(fields).table, read(fields)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**fields), attn_implementation="eager").eval()
    for weight in model.parameters():
        weight.data.normal_(std=0.3)
    logits, count = model(text(1)).logits, 0
    for name, changed in changes(fields):
        try:
            full = AutoConfig.for_model(**changed).to_dict()
            after = read(full)
        except Exception:  # a refused config: Transformers' validation and its libraries raise various exceptions
            continue
        if name in FREE | NO_EFFECT or [*weights(table, after)] != [*weights(table, before)]:
            continue
        other = AutoModelForCausalLM.from_config(AutoConfig.for_model(**full), attn_implementation="eager").eval()
        other.load_state_dict(model.state_dict())
        same = torch.equal(other(text(1)).logits, logits)
        assert same == (shape(after) == shape(before)), name
        count += 1
    assert count >= 3
