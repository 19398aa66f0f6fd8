"""The specs of the export from Megatron to Hugging Face, and of its audit."""

from typing import Literal

from pydantic import Field

from baton.tasks.core.spec import Problem, StageSpec
from baton.tasks.models.model_spec import ModelSpec


class ConvertSpec(StageSpec):
    """Export of a Megatron checkpoint to a Hugging Face model."""

    dtype: Literal["bf16", "fp32"] = Field("bf16", description="Storage type of the exported weights")
    max_shard_gb: float = Field(5.0, gt=0, le=100, description="Size of one safetensors file, in GB")


class AuditSpec(StageSpec):
    """Check that an exported model is equal to the trained one."""

    tokens: int = Field(2048, ge=8, le=1_000_000, description="Held-out tokens on which logits are compared")
    bound: float = Field(1e-4, gt=0, le=1e-2, description="Largest allowed |difference| of a logit, in fp32")


def unexportable(model: ModelSpec) -> list[Problem]:
    """Return problems with a model that Megatron can train but the family's Hugging Face model cannot represent.
    `config_fields` supports every other model (tested)."""
    problems = []
    if model.family == "llama" and model.hidden % model.heads:
        allowed = f"a multiple of heads ({model.heads}): Hugging Face's llama allows no other, whatever head_dim is"
        problems.append(Problem("hidden", model.hidden, allowed))
    if model.experts and model.experts.shared_ffn_hidden:
        allowed = f"0: Hugging Face's {model.family} has no shared expert, so `convert` could not export the model"
        problems.append(Problem("experts.shared_ffn_hidden", model.experts.shared_ffn_hidden, allowed))
    if model.family == "mixtral" and model.experts and not model.experts.normalize_top_k:
        allowed = "true: Hugging Face's mixtral always normalizes, so `convert` could not export the model"
        problems.append(Problem("experts.normalize_top_k", False, allowed))
    return problems
