"""The spec of AdamW and its learning-rate schedule."""

from typing import Literal

from pydantic import Field

from tasks.spec import Problem, Spec


class OptimizerSpec(Spec):
    """AdamW and its learning-rate schedule, as in Megatron-Core."""

    lr: float = Field(3e-3, gt=0, le=1, description="Peak learning rate")
    min_lr: float = Field(3e-4, ge=0, le=1, description="Learning rate at the end of the decay")
    warmup_steps: int = Field(40, ge=0, description="Steps of linear warm-up")
    warmup_from: float = Field(
        0.0,
        ge=0,
        le=1,
        description="Learning rate at the start of the warm-up; for a run that continues another, the min_lr that "
        "the other ended with",
    )
    decay: Literal["cosine", "linear", "WSD"] = Field("cosine", description="Shape of the decay")
    wsd_decay_steps: int = Field(0, ge=0, description="With WSD: steps of the final decay")
    beta1: float = Field(0.9, ge=0, lt=1, description="AdamW's first-moment decay")
    beta2: float = Field(0.95, ge=0, lt=1, description="AdamW's second-moment decay")
    eps: float = Field(1e-8, gt=0, lt=1, description="AdamW's epsilon")
    weight_decay: float = Field(0.1, ge=0, le=1, description="Decoupled weight decay; not applied to norms")
    clip_grad: float = Field(1.0, gt=0, description="Global gradient norm to clip to")

    def problems(self) -> list[Problem]:
        found = []
        if self.min_lr > self.lr:
            found.append(Problem("min_lr", self.min_lr, f"at most lr ({self.lr})"))
        if self.warmup_from > self.lr:
            found.append(Problem("warmup_from", self.warmup_from, f"at most lr ({self.lr})"))
        if self.warmup_from and not self.warmup_steps:
            found.append(Problem("warmup_from", self.warmup_from, "0 without warmup_steps: there is no warm-up"))
        if self.decay == "WSD" and self.wsd_decay_steps == 0:
            found.append(Problem("wsd_decay_steps", 0, "at least 1 with decay: WSD"))
        if self.decay != "WSD" and self.wsd_decay_steps:
            found.append(Problem("wsd_decay_steps", self.wsd_decay_steps, f"0 with decay: {self.decay}"))
        return found
