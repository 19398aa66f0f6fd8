"""The artifact of a trial of rewards."""

from baton.infra.text import number
from baton.tasks.artifacts import Artifact


class RewardCheck(Artifact):
    """`check.json`: the scores of rewards for the rows' own answers, and for those of other rows."""

    kind = "reward_check"
    order = 60
    family = "finding"
    page = "baton.tasks.reward_check.page:reward_check"
    rewards: int  # number that were tried
    faults: int  # number of these that do not score a row's own answers higher

    def detail(self) -> str:
        return f"{number(self.rewards)} rewards"
