"""Spec of an SFT run."""

from typing import Literal

from pydantic import Field

from tasks.posttrain.spec import PostTrainSpec


class SFTSpec(PostTrainSpec):
    """Supervised fine-tuning on rows of kind messages, prompt_completion or text."""

    engine: Literal["trl"] = Field("trl", description="training library")
    steps: int = Field(150, ge=1, le=1_000_000, description="optimizer steps")
    batch_size: int = Field(32, ge=1, le=65_536, description="rows per optimizer step")
    warmup_steps: int = Field(10, ge=0, le=100_000, description="steps of linear warmup")
    learning_rate: float = Field(5e-4, gt=0, le=0.1, description="AdamW's peak learning rate")
    loss: Literal["assistant", "completion", "all"] | None = Field(
        None,
        description="tokens with a loss: those of the assistant's turns (messages), of the completion "
        "(prompt_completion), or all; null: the narrowest that the rows allow",
    )
    packing: bool = Field(False, description="pack several rows into one sequence of the maximum length, for speed")

    def row_kinds(self) -> tuple[str, ...]:
        return ("messages", "prompt_completion", "text")
