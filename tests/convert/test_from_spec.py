"""Every model that `pretrain` can train and that `convert` does not refuse beforehand has a Hugging Face config that
Transformers can run."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from baton.tasks.convert.families import read
from baton.tasks.convert.from_spec import Untrainable, config_fields, model_spec
from baton.tasks.convert.hf_forward import check_runs
from baton.tasks.convert.spec import unexportable
from baton.tasks.models.model_spec import FAMILIES, ModelSpec
from baton.tasks.pretrain.model import transformer_config

VOCABULARY = 40


@st.composite
def specs(draw: st.DrawFn) -> dict[str, Any]:
    """Draw valid and invalid specs, with every field at its bounds."""
    heads = draw(st.sampled_from([1, 2, 3, 5, 6]))
    experts = {
        "count": draw(st.sampled_from([2, 5])),
        "top_k": draw(st.sampled_from([1, 2, 5])),
        "ffn_hidden": draw(st.sampled_from([8, 9])),
        "shared_ffn_hidden": draw(st.sampled_from([0, 8])),
        "normalize_top_k": draw(st.booleans()),
    }
    return {
        "family": draw(st.sampled_from(sorted(FAMILIES))),
        "layers": draw(st.sampled_from([1, 2])),
        "hidden": draw(st.sampled_from([8, 9, 30])),
        "heads": heads,
        "kv_heads": draw(st.sampled_from([heads, 1, 2])),
        "head_dim": draw(st.sampled_from([2, 8, 9])),
        "ffn_hidden": draw(st.sampled_from([8, 9])),
        "experts": draw(st.sampled_from([None, experts])),
        "max_positions": draw(st.sampled_from([8, 9, 16777216])),
        "sliding_window": draw(st.sampled_from([None, 1, 2**31 - 1, 2**31])),
        "rope_theta": draw(st.sampled_from([1.0, 1.0000001, 10000.0, 1e15, 1e16])),
        "rope_scaling_factor": draw(st.sampled_from([None, 1.0000001, 1024.0])),
        "norm_eps": draw(st.sampled_from([1e-30, 1e-6, 0.0099])),
        "init_std": draw(st.sampled_from([1e-30, 0.02, 0.999])),
        "tied_embeddings": draw(st.booleans()),
    }


@settings(max_examples=150)
@given(specs())
def test_every_model_that_passes_the_plan_can_be_trained_and_exported(fields: dict[str, Any]) -> None:
    try:
        model = ModelSpec.model_validate(fields)
    except ValidationError:
        return
    if model.problems():
        return
    transformer_config(model, "bf16")
    if unexportable(model):
        return
    config = config_fields(model, VOCABULARY)
    read(config)
    check_runs(config)


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"family": "llama", "hidden": 100, "heads": 8}, "hidden"),
        ({"family": "qwen3_moe", "experts": {"shared_ffn_hidden": 8}}, "experts.shared_ffn_hidden"),
    ],
)
def test_a_model_that_cannot_be_exported_is_named(fields: dict[str, Any], path: str) -> None:
    assert [problem.path for problem in unexportable(ModelSpec.model_validate(fields))] == [path]


@pytest.mark.parametrize("family", ["qwen3_moe", "mixtral"])
def test_one_expert_of_each_token_cannot_be_normalized(family: str) -> None:
    """Megatron refuses it, since a softmax over one score has nothing to learn."""
    one, two = (
        ModelSpec.model_validate({"family": family, "experts": {"count": 4, "top_k": top_k}}) for top_k in (1, 2)
    )
    assert [problem.path for problem in one.problems()] == ["experts.top_k"]
    fields = config_fields(two, VOCABULARY)
    with pytest.raises(Untrainable, match=r"experts\.top_k"):
        model_spec(family, read(fields | {"num_experts_per_tok": 1}))
