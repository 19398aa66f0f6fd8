"""A stage runs in the first place of the plan that has capacity, on any cloud."""

import random
from pathlib import Path

import pytest

from baton.infra.placement.config import Placement
from tests.placement.cloud.jobs import full, nothing_is_left, region_of, rented
from tests.placement.cloud.world import Cloud
from tests.placement.runs import ALPHA, BETA, SHORT, done, start
from tests.placement.slurm.clusters import occupied
from tests.placement.world import until

pytestmark = [pytest.mark.cloud, pytest.mark.timeout(900)]


@pytest.mark.parametrize("seed", range(20))
def test_the_first_place_of_the_plan_with_room_is_taken(aws: Cloud, tmp_path: Path, seed: int) -> None:
    """The table is random, and at least one place has capacity. The recorded price is that of the place."""
    from baton.infra.placement.prices import offers

    chance = random.Random(seed)
    change = rented(
        spot=chance.choice(["spot_first", "spot_first", "spot", "on_demand"]), cpus=chance.choice([2, 4, 8])
    )
    plan = offers(Placement.model_validate(change["placement"]))
    assert len(plan) >= 3
    free = set(chance.sample(range(len(plan)), chance.randint(1, 3)))
    names = [f"{offer.place.removeprefix('aws/')}/{offer.instance}/{_market(offer.spot)}" for offer in plan]
    aws.capacity(full(*(name for number, name in enumerate(names) if number not in free)))
    first = plan[min(free)]

    run = start(tmp_path, SHORT, change)
    until(lambda: bool(aws.instances()) or run.process.poll() is not None, "a machine", 600)
    (machine,) = aws.instances()
    assert f"{machine.region}/{machine.kind}/{_market(machine.spot)}" == names[min(free)]
    placed = done(run).record().placed
    assert placed["region"] == machine.region
    assert placed["price_per_hour"] == pytest.approx(first.price)
    assert placed["price_per_hour"] == pytest.approx(aws.prices[machine.region, machine.kind, machine.spot])
    nothing_is_left(aws)


def _market(is_spot: bool) -> str:
    return "spot" if is_spot else "on-demand"


def test_aws_is_empty_and_a_cluster_is_not(aws: Cloud, tmp_path: Path) -> None:
    aws.capacity(full("us-east-1", "us-west-2", "eu-west-1"))
    run = done(start(tmp_path, SHORT, rented("aws", ALPHA, choose="in_order")))
    assert (run.record().placed["cloud"], region_of(run)) == ("Slurm", "alpha")
    nothing_is_left(aws)


def test_the_clusters_are_full_and_aws_is_not(aws: Cloud, tmp_path: Path) -> None:
    with occupied(aws.slurm.alpha), occupied(aws.slurm.beta):
        run = done(start(tmp_path, SHORT, rented(ALPHA, BETA, "aws", choose="in_order")))
        assert (run.record().placed["cloud"], region_of(run)) == ("AWS", "us-east-1")
        until(lambda: not aws.instances(), "nothing is left")


def test_a_stage_goes_from_a_cloud_to_a_cluster(aws: Cloud, tmp_path: Path) -> None:
    """The cluster is used when no region has a machine."""
    here = done(start(tmp_path / "here", SHORT | {"steps": 600, "checkpoints": {"every": 100}}))
    change = rented("aws", ALPHA, choose="in_order")
    run = start(tmp_path / "rented", SHORT | {"steps": 600, "checkpoints": {"every": 100}}, change)
    run.reaches(150)
    aws.capacity(full("us-east-1", "us-west-2", "eu-west-1"))
    aws.preempt()
    done(run)
    assert run.record().placed["cloud"] == "Slurm"
    assert run.digest == here.digest
    nothing_is_left(aws)


@pytest.mark.parametrize(
    ("accelerator", "kind"), [("H100:8", "p5.48xlarge"), ("A100:8", "p4d.24xlarge"), ("L4:1", "g6.xlarge")]
)
def test_the_accelerator_that_is_asked_for_is_rented(aws: Cloud, tmp_path: Path, accelerator: str, kind: str) -> None:
    """The machine has no GPU, but an nvidia-smi that reports the instance's GPU; the stage trains on CPUs."""
    processes = int(accelerator.partition(":")[2])
    layout = {"layout": {"micro_batch": 1, "processes": processes}}
    run = start(tmp_path, SHORT, layout, rented(accelerators=[accelerator], cpus=None))
    until(lambda: bool(aws.instances()) or run.process.poll() is not None, "a machine", 300)
    assert [each.kind for each in aws.instances()] == [kind]
    done(run)
    assert run.record().placed["price_per_hour"] == pytest.approx(aws.prices["us-east-1", kind, True])
    nothing_is_left(aws)
