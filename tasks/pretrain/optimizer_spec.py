"""The spec of AdamW and its learning-rate schedule."""

from typing import Any, Literal, Self

from pydantic import Field

from baton.tasks.core.spec import Problem, Spec
from baton.tasks.models.rates import ANY_SIZE, Rate, default_warmup

RATES = (
    Rate(50e6, 3e-3, "workflows/recipes/laptop.yaml, 5.8 M parameters"),
    Rate(1e9, 6e-4, "GPT-3 125M"),
    Rate(20e9, 3e-4, "Llama 2 7B, SmolLM3 3B"),
    Rate(ANY_SIZE, 1.5e-4, "Llama 2 70B"),
)
CONTINUED = 0.1  # factor of the rate for random weights: at lower rates, a pretrained model forgets less


class OptimizerSpec(Spec):
    """AdamW and its learning-rate schedule, as in Megatron-Core."""

    lr: float | None = Field(
        None,
        gt=0,
        le=1,
        description="Peak learning rate; null: chosen by the model's size (docs/pretraining.md has the table)",
    )
    min_lr: float | None = Field(
        None, ge=0, le=1, description="Learning rate at the end of the decay; null: a tenth of lr"
    )
    warmup_steps: int | None = Field(
        None, ge=0, description="Steps of linear warm-up; null: a tenth of the steps, at most 2,000"
    )
    warmup_from: float = Field(
        0.0,
        ge=0,
        le=1,
        description="Learning rate at the start of the warm-up; for a run that continues another, the other's final "
        "min_lr",
    )
    decay: Literal["cosine", "linear", "WSD"] = Field("cosine", description="Shape of the decay")
    wsd_decay_steps: int = Field(0, ge=0, description="With WSD: steps of the final decay")
    beta1: float = Field(0.9, ge=0, lt=1, description="AdamW's first-moment decay")
    beta2: float = Field(0.95, ge=0, lt=1, description="AdamW's second-moment decay")
    eps: float = Field(1e-8, gt=0, lt=1, description="AdamW's epsilon")
    weight_decay: float = Field(0.1, ge=0, le=1, description="Decoupled weight decay; not applied to norms")
    clip_grad: float = Field(1.0, gt=0, description="Global gradient norm to clip to")

    def smoke(self) -> dict[str, Any]:
        return {
            "warmup_steps": self.warmup_steps and min(self.warmup_steps, 1),
            "wsd_decay_steps": min(self.wsd_decay_steps, 1),
        }

    def resolved(self, rate: Rate, steps: int) -> Self:
        """Return a copy in which the rates and the warm-up have values. `rate` is the default for the model."""
        lr = rate.value if self.lr is None else self.lr
        min_lr = float(f"{lr / 10:.3g}") if self.min_lr is None else self.min_lr
        warmup = default_warmup(steps - self.wsd_decay_steps) if self.warmup_steps is None else self.warmup_steps
        return self.model_copy(update={"lr": lr, "min_lr": min_lr, "warmup_steps": warmup})

    def problems(self) -> list[Problem]:
        problems = []
        if self.lr is None and self.min_lr is not None:
            problems.append(Problem("min_lr", self.min_lr, "null, or set lr too"))
        if self.lr is None and self.warmup_from:
            problems.append(Problem("warmup_from", self.warmup_from, "0, or set lr too"))
        if self.lr is not None and self.min_lr is not None and self.min_lr > self.lr:
            problems.append(Problem("min_lr", self.min_lr, f"at most lr ({self.lr})"))
        if self.lr is not None and self.warmup_from > self.lr:
            problems.append(Problem("warmup_from", self.warmup_from, f"at most lr ({self.lr})"))
        if self.warmup_from and self.warmup_steps == 0:
            problems.append(Problem("warmup_from", self.warmup_from, "0 without warmup_steps: there is no warm-up"))
        if self.decay == "WSD" and self.wsd_decay_steps == 0:
            problems.append(Problem("wsd_decay_steps", 0, "at least 1 with decay: WSD"))
        if self.decay != "WSD" and self.wsd_decay_steps:
            problems.append(Problem("wsd_decay_steps", self.wsd_decay_steps, f"0 with decay: {self.decay}"))
        return problems
