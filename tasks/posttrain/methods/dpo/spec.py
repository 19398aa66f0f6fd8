"""DPO: direct preference optimization (Rafailov et al. 2023, arXiv:2305.18290)."""

from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import Field

from baton.tasks.core.spec import ByBaton, Problem, Spec
from baton.tasks.models.rates import ANY_SIZE, Rate
from baton.tasks.posttrain.methods.dpo.pairs import Pair
from baton.tasks.posttrain.spec import (
    PROMPTED,
    Example,
    Method,
    PostTrainSpec,
    Prompt,
    RewardList,
    StepCost,
    VLLMEngine,
)
from baton.tasks.rewards.spec import MOST, RewardSpec, rewards_problems, tried_field
from baton.tasks.rows.marks import refusal
from baton.tasks.rows.stored import Row
from baton.tasks.vllm.memory import vllm_share

if TYPE_CHECKING:  # encode imports Transformers, which would slow down --help
    from baton.tasks.posttrain.encode import RowEncoder


class PairsSpec(Spec):
    """Preference pairs of the tuned model's completions of the rows' prompts, scored by rewards."""

    rewards: list[RewardSpec] = Field(min_length=1, max_length=MOST, description="rewards that score the completions")
    rewards_tried: ByBaton[bool] = tried_field()
    prompts: int = Field(1200, ge=1, le=10_000_000, description="maximum number of prompts to sample")
    samples: int = Field(1, ge=1, le=1000, description="completions per prompt")
    temperature: float = Field(1.0, gt=0, le=2, description="sampling temperature")
    chosen: Literal["gold", "best"] = Field(
        "gold", description="the row's own completion, or the model's best; the rejected one is the model's worst"
    )
    gpu_memory_share: float = vllm_share(0.85, "which is closed before training")

    def smoke(self) -> dict[str, Any]:
        return {"prompts": min(self.prompts, 32)}

    def problems(self) -> list[Problem]:
        problems = [problem.under("rewards") for problem in rewards_problems(self.rewards)]
        if self.chosen == "best" and self.samples < 2:
            problems.append(Problem("samples", self.samples, "at least 2 with `chosen: best`"))
        return problems


class DPOSpec(PostTrainSpec):
    """Direct preference optimization with TRL, on rows of kind preference or on pairs sampled from the model."""

    method: ClassVar = Method("dpo", "baton.tasks.posttrain.methods.dpo.trainer:train", version="7")
    rates: ClassVar = (
        Rate(50e6, 3e-4, "workflows/recipes/laptop.yaml, 5.8 M parameters"),
        Rate(3e9, 1e-6, "TRL's default; SmolLM2 135M to 1.7B"),
        Rate(30e9, 5e-7, "Zephyr 7B, Tulu 3 8B"),
        Rate(ANY_SIZE, 2e-7, "Tulu 3 70B"),
    )

    pairs: PairsSpec | None = Field(None, description="sample the pairs from the model; null: the rows are pairs")
    steps: int = Field(30, ge=1, le=1_000_000, description="optimizer steps")
    batch_size: int = Field(32, ge=1, le=65_536, description="pairs per optimizer step")
    beta: float = Field(0.1, gt=0, le=10, description="DPO's beta; higher: closer to the reference model")
    sft_weight: float = Field(
        0.2,
        ge=0,
        le=10,
        description="weight of the SFT loss on the chosen completions, which keeps them from becoming unlikely",
    )

    def vllm_engines(self) -> list[VLLMEngine]:
        """Return the engine that samples pairs, which is closed before training."""
        return [VLLMEngine("pairs", self.pairs.gpu_memory_share)] if self.pairs else []

    def step_cost(self) -> StepCost:
        return StepCost(sequences=2, completions_alone=True, reference=True, reference_in_step=True, forward_passes=1)

    def epochs(self, rows: int, kind: str) -> float | str:
        return "they are sampled first" if self.pairs else super().epochs(rows, kind)

    def reward_lists(self) -> list[RewardList]:
        return [RewardList("pairs.rewards", self.pairs.rewards)] if self.pairs else []

    def with_rewards_tried(self) -> Self:
        if self.pairs is None:
            return self
        return self.model_copy(update={"pairs": self.pairs.model_copy(update={"rewards_tried": True})})

    def refused(self, row: Row, kind: str) -> str:
        why = refusal(row, "prompt_completion") if self.pairs and self.pairs.chosen == "gold" else ""
        if not why:
            return super().refused(row, kind)
        return f"{why}, and with pairs.chosen: gold it would be the better answer"

    def encode(self, row: Row, kind: str, encoder: "RowEncoder") -> Example:
        if kind == "preference":
            (prompt, chosen), (other, rejected) = encoder.preference(row)
            return Pair.of(prompt, chosen, other, rejected)
        if self.pairs and self.pairs.chosen == "gold":
            row = self.prompted(row, kind)
            return Prompt(row, *encoder.completion(row))
        return super().encode(row, kind, encoder)

    def row_kinds(self) -> tuple[str, ...]:
        if self.pairs is None:
            return ("preference",)
        return PROMPTED if self.pairs.chosen == "best" else tuple(kind for kind in PROMPTED if kind != "prompt")

    def problems(self) -> list[Problem]:
        return super().problems() + [
            problem.under("pairs") for problem in (self.pairs.problems() if self.pairs else [])
        ]
