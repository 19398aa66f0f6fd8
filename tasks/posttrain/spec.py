"""What the three post-training specs have in common."""

from pydantic import Field

from tasks.spec import Problem, StageSpec

PROMPTED = ("prompt", "prompt_completion", "messages")  # kinds of rows that ask something


class PostTrainSpec(StageSpec):
    """An optimizer run over a set of rows."""

    data: str = Field(
        "",
        description="set of rows, by its name under the recipe's `data` (required)",
        json_schema_extra={"identity": False},
    )
    label: str = Field("", description="name of the model that is made; filled in by Baton from the stage's name")
    steps: int = Field(100, ge=1, le=1_000_000, description="optimizer steps")
    batch_size: int = Field(64, ge=1, le=65_536, description="sequences per optimizer step")
    micro_batch_size: int = Field(64, ge=1, le=65_536, description="sequences in one forward and backward pass")
    learning_rate: float = Field(1e-4, gt=0, le=0.1, description="peak of AdamW's learning rate")
    warmup_steps: int = Field(5, ge=0, le=100_000, description="steps of linear warm-up")
    weight_decay: float = Field(0.0, ge=0, le=1, description="AdamW's decoupled weight decay")
    max_prompt_tokens: int = Field(96, ge=8, le=131_072, description="rows with a longer prompt are not used; tokens")
    max_new_tokens: int = Field(
        48,
        ge=4,
        le=131_072,
        description="rows with a longer completion are not used, and no longer one is sampled; tokens",
    )
    checkpoint_every: int = Field(50, ge=1, le=100_000, description="steps between two checkpoints")
    seed: int = Field(0, ge=0, lt=2**31, description="of the choice of rows, their order and the sampling")

    def row_kinds(self) -> tuple[str, ...]:
        """The kinds of rows that the stage can use."""
        return PROMPTED

    def sequence_lengths(self) -> dict[str, int]:
        """The longest sequences that the stage makes, in tokens, by the field that sets them."""
        return {"max_prompt_tokens": self.max_prompt_tokens + self.max_new_tokens}

    def problems(self) -> list[Problem]:
        found = []
        if self.batch_size % self.micro_batch_size:
            found.append(
                Problem("micro_batch_size", self.micro_batch_size, f"a divisor of batch_size {self.batch_size}")
            )
        if self.warmup_steps >= self.steps:
            found.append(Problem("warmup_steps", self.warmup_steps, f"fewer than steps ({self.steps})"))
        return found
