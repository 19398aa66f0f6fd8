"""The short run of the rented world, which CI has: no capacity, a machine that is taken, nothing left behind."""

from pathlib import Path

import pytest

from tests.placement.cloud.jobs import MIDDLE, full, nothing_is_left, rented
from tests.placement.cloud.world import Cloud
from tests.placement.runs import done, start
from tests.placement.world import until

pytestmark = [pytest.mark.cloud, pytest.mark.rented, pytest.mark.timeout(1500)]


def test_a_stage_goes_where_there_is_room_and_survives_its_machine(aws: Cloud, tmp_path: Path) -> None:
    """The first region has no spot machine; the second one's is taken, and the third continues."""
    aws.capacity(full("us-east-1"))
    run = start(tmp_path / "rented", MIDDLE, rented())
    here = start(tmp_path / "here", MIDDLE)  # meanwhile
    until(lambda: bool(aws.instances()), "a machine", 300)
    assert [(each.region, each.kind, each.spot) for each in aws.instances()] == [("us-west-2", "m6i.large", True)]
    run.reaches(250)
    aws.capacity(full("us-east-1", "us-west-2"))
    aws.preempt()
    done(run)
    nothing_is_left(aws)
    placed = run.record().placed
    assert (placed["region"], placed["recoveries"]) == ("eu-west-1", 1)
    assert placed["price_per_hour"] == pytest.approx(aws.prices["eu-west-1", "m6i.large", True], rel=0.01)
    assert "resumes from step 2" in run.said() or "step 200" in run.said()
    assert run.digest == done(here).digest
    assert run.losses() == here.losses()
