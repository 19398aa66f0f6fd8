"""Spec of a trial of rewards on the rows' own answers, before anything is trained."""

from typing import Literal

from pydantic import Field

from tasks.core.spec import Spec, StageSpec
from tasks.rewards.spec import RewardSpec


class RewardListSpec(Spec):
    """The rewards of one stage or evaluator."""

    path: str = Field(description="Field of the recipe, such as evaluate.sums.rewards")
    data: str = Field(description="Name of its set of rows")
    rewards: list[RewardSpec] = Field(min_length=1, description="The rewards that can be tried anywhere")
    split: Literal["train", "held_out"] = Field("train", description="The rows that it uses")
    required: bool = Field(True, description="Whether a reward that does not tell own answers apart ends the run")


class RewardCheckSpec(StageSpec):
    """All lists of a recipe."""

    lists: list[RewardListSpec] = Field(min_length=1, description="Lists of rewards")

    def sets(self) -> list[str]:
        """The sets of rows, sorted: the order of the stage's input `rows`."""
        return sorted({one.data for one in self.lists})
