"""What a GRPO run is."""

from typing import Literal

from pydantic import Field

from tasks.posttrain.spec import PostTrainSpec
from tasks.rewards.spec import MOST, RewardSpec, rewards_problems
from tasks.serve.spec import vllm_share
from tasks.spec import Problem


class GRPOSpec(PostTrainSpec):
    """Group-relative policy optimization on rows with a prompt, scored by rewards."""

    engine: Literal["trl"] = Field("trl", description="the program that tunes")
    steps: int = Field(40, ge=1, le=1_000_000, description="optimizer steps; each samples anew")
    batch_size: int = Field(128, ge=2, le=65_536, description="completions per optimizer step")
    micro_batch_size: int = Field(64, ge=1, le=65_536, description="completions in one forward and backward pass")
    generations: int = Field(8, ge=2, le=4_096, description="completions of one prompt, which are its group")
    learning_rate: float = Field(1.5e-4, gt=0, le=0.1, description="peak of AdamW's learning rate")
    beta: float = Field(0.1, ge=0, le=10, description="weight of the KL to the model it starts from; 0: none")
    temperature: float = Field(1.0, gt=0, le=2, description="of sampling; 1: the model's own distribution")
    rewards: list[RewardSpec] = Field(
        min_length=1, max_length=MOST, description="what completions are rewarded for; weights add up"
    )
    gpu_memory_share: float = vllm_share(0.3, "beside the training")

    def samples_model(self) -> bool:
        return True

    def problems(self) -> list[Problem]:
        found = super().problems() + [problem.under("rewards") for problem in rewards_problems(self.rewards)]
        if self.batch_size % self.generations:
            allowed = f"a divisor of batch_size {self.batch_size}"
            found.append(Problem("generations", self.generations, allowed))
        return found
