"""The trial of rewards as a typed Flyte task."""

from baton import images
from baton.infra.pod_spec import PodSpec, Resources
from baton.infra.process.launch import Engine
from baton.tasks.reward_check.artifact import RewardCheck
from baton.tasks.reward_check.spec import TRIED_MEMORY, RewardCheckSpec
from baton.tasks.rows.artifact import Rows
from baton.tasks.run import run
from baton.tasks.stage import stage

ENGINE = Engine("rewards", "baton.tasks.reward_check.check", version="2")
# The trial took 0.35 GiB on a cluster; the rest is for modules that the functions load.
SMALL = PodSpec(resources=Resources(cpu=1, memory=TRIED_MEMORY))


@stage(ENGINE, image=images.POST_TRAIN, pod=SMALL)
def check_rewards(spec: RewardCheckSpec, rows: list[Rows]) -> RewardCheck:
    """Try rewards on the rows' own answers and on those of other rows; `rows` are in the order of `spec.sets()`."""
    return run(ENGINE, RewardCheck, spec, rows=rows)
