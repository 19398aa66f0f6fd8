"""What the three post-training specs have in common."""

from dataclasses import dataclass

from pydantic import Field

from tasks.spec import Problem, StageSpec

PROMPTED = ("prompt", "prompt_completion", "messages")  # kinds of rows that ask something
LENGTH, SAMPLED = 2048, 256  # tokens of a sequence, and of a completion that is sampled, where the spec says none


@dataclass(frozen=True)
class Limits:
    """How long a row may be; tokens."""

    prompt: int
    new: int
    total: int
    said: str  # the fields that say so, for messages

    def fit(self, *tokens: int) -> bool:
        """`tokens` are those of a prompt and of its completion, or those of a row in one piece."""
        apart = len(tokens) == 1 or (tokens[0] <= self.prompt and tokens[1] <= self.new)
        return apart and sum(tokens) <= self.total


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
    max_prompt_tokens: int | None = Field(
        None,
        ge=8,
        le=131_072,
        description="rows with a longer prompt are not used; tokens. With max_new_tokens this is the longest sequence; "
        f"null: {LENGTH} tokens beside the other, or as many as the model has positions",
    )
    max_new_tokens: int | None = Field(
        None,
        ge=4,
        le=131_072,
        description="rows with a longer completion are not used, and no longer one is sampled; tokens. null: as with "
        f"max_prompt_tokens, and {SAMPLED} are sampled (or half of the positions)",
    )
    checkpoint_every: int = Field(50, ge=1, le=100_000, description="steps between two checkpoints")
    seed: int = Field(0, ge=0, lt=2**31, description="of the choice of rows, their order and the sampling")

    def row_kinds(self) -> tuple[str, ...]:
        """The kinds of rows that the stage can use."""
        return PROMPTED

    def samples_model(self) -> bool:
        """Whether completions are sampled from the model, and not the rows' own."""
        return False

    def sequence_lengths(self) -> dict[str, int]:
        """The longest sequences that the stage makes, in tokens, by the field that sets them."""
        given = {"max_prompt_tokens": self.max_prompt_tokens, "max_new_tokens": self.max_new_tokens}
        lengths = {name: value for name, value in given.items() if value is not None}
        return {next(iter(lengths)): sum(lengths.values())} if lengths else {}

    def limits(self, positions: int) -> Limits:
        """How long a row may be for a model with so many positions, of which the spec may ask for more."""
        prompt, new = self.max_prompt_tokens, self.max_new_tokens
        if new is None and self.samples_model():
            new = min(SAMPLED, positions // 2)
        total = min(positions, LENGTH + (prompt or new or 0)) if prompt is None or new is None else prompt + new
        said = [f"{name} {value}" for name, value in (("max_prompt_tokens", prompt), ("max_new_tokens", new)) if value]
        return Limits(
            prompt=total - (new or 0) if prompt is None else prompt,
            new=total - (prompt or 0) if new is None else new,
            total=total,
            said=" and ".join(said if len(said) == 2 else [*said, f"{total} tokens in all"]),
        )

    def problems(self) -> list[Problem]:
        found = []
        if self.batch_size % self.micro_batch_size:
            found.append(
                Problem("micro_batch_size", self.micro_batch_size, f"a divisor of batch_size {self.batch_size}")
            )
        if self.warmup_steps >= self.steps:
            found.append(Problem("warmup_steps", self.warmup_steps, f"fewer than steps ({self.steps})"))
        return found
