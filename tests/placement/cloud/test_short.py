"""The short test of the rented world, which CI runs: no capacity, a preemption, nothing left behind."""

from pathlib import Path

import pytest

from tests.placement.cloud.jobs import MIDDLE, full, nothing_is_left, rented
from tests.placement.cloud.world import Cloud
from tests.placement.runs import done, start
from tests.placement.world import until

SOME = MIDDLE | {"steps": 600}
pytestmark = [pytest.mark.cloud, pytest.mark.rented, pytest.mark.timeout(1500)]


def test_a_stage_goes_where_there_is_room_and_survives_its_machine(aws: Cloud, tmp_path: Path) -> None:
    """The first region has no spot machine, that of the second is preempted, and the third continues the stage."""
    aws.capacity(full("us-east-1"))
    run = start(tmp_path / "rented", SOME, rented())
    here = start(tmp_path / "here", SOME)  # runs at the same time
    until(lambda: bool(aws.instances()), "a machine", 600)
    assert [(each.region, each.kind, each.spot) for each in aws.instances()] == [("us-west-2", "m6i.large", True)]
    run.reaches(150)
    aws.capacity(full("us-east-1", "us-west-2"))
    aws.preempt()
    done(run)
    nothing_is_left(aws)
    placed = run.record().placed
    assert (placed["region"], placed["recoveries"]) == ("eu-west-1", 1)
    assert placed["price_per_hour"] == pytest.approx(aws.prices["eu-west-1", "m6i.large", True], rel=0.01)
    assert run.digest == done(here).digest
    assert run.losses() == here.losses()
