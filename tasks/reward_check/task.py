"""The trial of rewards as a typed Flyte task."""

import images
from infra.process.launch import Engine
from tasks.artifacts import RewardCheck, Rows
from tasks.reward_check.spec import RewardCheckSpec
from tasks.run import run
from tasks.stage import stage

ENGINE = Engine("rewards", "tasks.reward_check.check", version="1")


@stage(ENGINE, image=images.POST_TRAIN)
def check_rewards(spec: RewardCheckSpec, rows: list[Rows]) -> RewardCheck:
    """Try rewards on the rows' own answers and on those of other rows; `rows` are in the order of `spec.sets()`."""
    return run(ENGINE, RewardCheck, spec, rows=rows)
