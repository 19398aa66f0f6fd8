"""Spec of a trial of rewards on the rows' own answers, before anything is trained."""

from typing import Literal, Self

from pydantic import Field

from baton.infra.pod_spec import PodSpec, Resources, in_bytes, in_gib
from baton.tasks.core.spec import Spec, StageSpec
from baton.tasks.rewards.spec import RewardSpec

TRIED_MEMORY = "2Gi"  # memory of the trial's pod, unless a reward needs more


class RewardListSpec(Spec):
    """The rewards of one stage or evaluator."""

    path: str = Field(description="Field of the recipe, such as evaluate.sums.rewards")
    data: str = Field(description="Name of its set of rows")
    rewards: list[RewardSpec] = Field(min_length=1, description="The rewards that can be tried anywhere")
    split: Literal["train", "held_out"] = Field("train", description="The rows that it uses")
    required: bool = Field(True, description="Whether a reward that does not tell own answers apart ends the run")


class RewardCheckSpec(StageSpec):
    """The lists of rewards of a recipe."""

    lists: list[RewardListSpec] = Field(min_length=1, description="Lists of rewards")

    def with_memory(self) -> Self:
        """Return a copy for a pod with the memory of the functions whose `memory_gb` is above the default."""
        functions = {
            reward.function.name: reward.memory_gb for one in self.lists for reward in one.rewards if reward.function
        }
        usual = float(RewardSpec.model_fields["memory_gb"].default)
        if not (much := [each for each in functions.values() if each > usual]):
            return self
        resources = Resources(memory=in_gib(in_bytes(TRIED_MEMORY) + sum(much) * 1e9))
        return self.model_copy(update={"pod": PodSpec(resources=resources)})

    def sets(self) -> list[str]:
        """Return the sorted sets of rows, which are in the order of the stage's input `rows`."""
        return sorted({one.data for one in self.lists})
