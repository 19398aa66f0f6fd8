"""What an evaluation measures. The measure is the same for every model that is compared."""

from pydantic import Field

from tasks.spec import StageSpec


class EvaluateSpec(StageSpec):
    """Bits per byte on held-out documents, and next statements for prompts out of them."""

    prompts: int = Field(600, ge=1, le=100_000, description="Held-out prompts, one completion each; count")
    prompts_per_function: int = Field(2, ge=1, le=100, description="Prompts out of one function at most; count")
    temperature: float = Field(1.0, gt=0, le=2, description="Of sampling; 1 is the model's own distribution")
    top_p: float = Field(1.0, gt=0, le=1, description="Share of probability that is sampled from; 1 is all of it")
    max_new_tokens: int = Field(64, ge=1, le=4096, description="Length of a completion at most; tokens")
    max_prompt_chars: int = Field(800, ge=50, le=100_000, description="The function so far, at most; characters")
    held_out_bytes: int = Field(400_000, ge=1, description="Held-out text that bits per byte is measured on; bytes")
    seed: int = Field(0, ge=0, lt=2**31, description="Of the choice of prompts and of the sampling")

    def sequence_lengths(self) -> dict[str, int]:
        """The longest sequences that the stage makes, in tokens, by the field that sets them."""
        return {"max_new_tokens": self.max_new_tokens}
