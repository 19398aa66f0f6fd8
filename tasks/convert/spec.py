"""What the conversion from Megatron to Hugging Face is."""

from typing import Literal

from pydantic import Field

from tasks.spec import Spec

FAMILIES = ("qwen3",)  # of models, those that there is a map of names for


class ConvertSpec(Spec):
    """A Hugging Face model, and the proof that it is the same model."""

    dtype: Literal["bf16", "fp32"] = Field("bf16", description="Storage type of the exported weights")
    parity_tokens: int = Field(2048, ge=8, le=1_000_000, description="Held-out tokens on which logits are compared")
    parity_bound: float = Field(1e-4, gt=0, le=1e-2, description="Largest |difference| of a logit allowed, in fp32")
    max_shard_gb: float = Field(5.0, gt=0, le=100, description="Size of one safetensors file, in GB")
