"""Spec of an SFT run."""

from typing import ClassVar, Literal

from pydantic import Field

from tasks.posttrain.spec import PostTrainSpec
from tasks.rates import ANY_SIZE, Rate


class SFTSpec(PostTrainSpec):
    """Supervised fine-tuning on rows of kind messages, prompt_completion or text."""

    rates: ClassVar = (
        Rate(50e6, 5e-4, "workflows/recipes/laptop.yaml, 5.8 M parameters"),
        Rate(3e9, 2e-5, "TRL's default; SmolLM3 3B"),
        Rate(30e9, 1e-5, "between Zephyr 7B's 2e-5 and Tulu 3 8B's 5e-6"),
        Rate(ANY_SIZE, 2e-6, "Tulu 3 70B"),
    )

    engine: Literal["trl"] = Field("trl", description="training library")
    steps: int = Field(150, ge=1, le=1_000_000, description="optimizer steps")
    batch_size: int = Field(32, ge=1, le=65_536, description="rows per optimizer step")
    loss: Literal["assistant", "completion", "all"] | None = Field(
        None,
        description="tokens with a loss: those of the assistant's turns (messages), of the completion "
        "(prompt_completion), or all; null: the narrowest that the rows allow",
    )
    packing: bool = Field(False, description="pack several rows into one sequence of the maximum length, for speed")

    def row_kinds(self) -> tuple[str, ...]:
        return ("messages", "prompt_completion", "text")
