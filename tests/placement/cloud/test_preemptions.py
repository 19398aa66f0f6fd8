"""Machines are preempted twenty times at random, and the result equals that of an undisturbed run."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.placement.cloud.jobs import MIDDLE, full, nothing_is_left, rented
from tests.placement.cloud.world import Cloud
from tests.placement.runs import GRPO, Run, done, start, tune
from tests.placement.world import until

pytestmark = [pytest.mark.cloud, pytest.mark.timeout(3600)]


def pretrain(folder: Path, *changes: dict[str, object]) -> Run:
    return start(folder, MIDDLE | {"steps": 4000}, *changes)


def sft(folder: Path, *changes: dict[str, object]) -> Run:
    return tune(folder, "sft", *changes)


def grpo(folder: Path, *changes: dict[str, object]) -> Run:
    return tune(folder, "grpo", GRPO | {"checkpoint_every": 5}, *changes)


@pytest.mark.parametrize(("begin", "steps", "times"), [(pretrain, 4000, 7), (sft, 300, 7), (grpo, 40, 6)])
def test_machines_are_taken_at_random_moments(
    aws: Cloud, tmp_path: Path, begin: Callable[..., Run], steps: int, times: int
) -> None:
    """Each preemption is at a training step, after which the region of the preempted machine is full."""
    chance = random.Random(f"{begin.__name__} 51")
    here = done(begin(tmp_path / "here"))
    run = begin(tmp_path / "rented", rented())
    taken: set[str] = set()
    for step in sorted(chance.sample(range(1, steps * 9 // 10), times)):
        run.reaches(step)
        until(lambda: bool({each.id for each in aws.instances()} - taken), "a machine", 300)
        (machine,) = aws.instances()
        aws.capacity(full(machine.region))
        aws.preempt()
        taken.add(machine.id)
    done(run)
    nothing_is_left(aws)
    assert len(taken) == times
    assert run.digest == here.digest
    assert run.losses() == here.losses()
    assert (
        0 < run.record().placed["recoveries"] <= times
    )  # a machine that is preempted while it starts does not count as a recovery
