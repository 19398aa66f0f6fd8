"""The schedule, with a simulated clock."""

import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from baton.workflows.schedule import Plan, due, reread, run_forever
from tests.shipped import shipped

NIGHTLY, WEEKLY = Plan("nightly", "0 2 * * *"), Plan("weekly", "0 4 * * 0")
MONDAY = datetime(2026, 11, 23, 12, tzinfo=UTC)


class Clock:
    """A clock that advances only while a caller sleeps or works."""

    def __init__(self, moment: datetime, end: datetime) -> None:
        self.moment, self.end = moment, end

    def now(self) -> datetime:
        return self.moment

    def sleep(self, seconds: float) -> None:
        self.moment += timedelta(seconds=seconds)
        if self.moment > self.end:
            raise KeyboardInterrupt


def starts(days: int, takes: timedelta, *plans: Plan) -> list[str]:
    """Return the runs that start within a number of days after Monday noon if a run takes `takes`."""
    clock, found = Clock(MONDAY, MONDAY + timedelta(days=days)), list[str]()

    def start(plan: Plan) -> None:
        found.append(f"{plan.name} {clock.moment:%a %H:%M}")
        clock.sleep(takes.total_seconds())

    with pytest.raises(KeyboardInterrupt):
        run_forever([*plans], start, clock.now, clock.sleep)
    return found


def test_a_plan_starts_at_its_time_every_time() -> None:
    assert starts(3, timedelta(hours=1), NIGHTLY) == ["nightly Tue 02:00", "nightly Wed 02:00", "nightly Thu 02:00"]


def test_sunday_is_day_0_as_cron_has_it() -> None:
    assert starts(8, timedelta(hours=1), WEEKLY) == ["weekly Sun 04:00"]


def test_what_falls_due_while_another_runs_starts_once_afterwards() -> None:
    assert starts(4, timedelta(hours=50), NIGHTLY) == ["nightly Tue 02:00", "nightly Thu 04:00"]


def test_what_fell_due_before_the_schedule_was_started_is_not_made_up_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert starts(1, timedelta(hours=1), NIGHTLY) == ["nightly Tue 02:00"]  # not Monday's run, which was before noon
    assert "starts before 2026-11-23 12:00 UTC are not made up for (--now" in capsys.readouterr().err


def test_one_run_at_a_time_the_earliest_first() -> None:
    assert starts(6.5, timedelta(hours=3), WEEKLY, NIGHTLY)[-2:] == ["nightly Sun 02:00", "weekly Sun 05:00"]  # type: ignore[arg-type]


@pytest.mark.parametrize("ahead", [timedelta(days=1460), timedelta(hours=25)])
def test_a_clock_that_is_ahead_at_first_costs_no_night(ahead: timedelta) -> None:
    end = MONDAY + timedelta(days=3)
    clock, found = Clock(MONDAY + ahead, end + ahead), list[str]()

    def sleep(seconds: float) -> None:
        clock.sleep(seconds)
        if clock.end > end:  # sets the clock right
            clock.moment, clock.end = clock.moment - ahead, end

    with pytest.raises(KeyboardInterrupt):
        run_forever([NIGHTLY], lambda plan: found.append(f"{clock.moment:%a %H:%M}"), clock.now, sleep)
    assert found == ["Tue 02:00", "Wed 02:00", "Thu 02:00"]


def test_a_small_correction_of_the_clock_starts_nothing_twice() -> None:
    clock, found = Clock(MONDAY, MONDAY + timedelta(days=2)), list[str]()

    def start(plan: Plan) -> None:
        found.append(f"{clock.moment:%a %H:%M}")
        clock.moment -= timedelta(seconds=1)

    with pytest.raises(KeyboardInterrupt):
        run_forever([NIGHTLY], start, clock.now, clock.sleep)
    assert found == ["Tue 02:00", "Wed 02:00"]


def test_a_changed_recipe_counts_from_then_on(tmp_path: Path) -> None:
    """Tuesday's run starts at 2:00. The recipe is changed at 3:00, and is invalid for an hour."""
    recipe = shipped("continuous.yaml")
    file = tmp_path / "recipe.yaml"
    clock, found = Clock(MONDAY, MONDAY + timedelta(days=3)), list[str]()

    def save(**schedule: Any) -> list[Plan]:
        file.write_text(yaml.safe_dump(recipe | {"refresh": None, "schedule": schedule}))
        return reread([NIGHTLY], file)

    def sleep(seconds: float) -> None:
        clock.sleep(seconds)
        if clock.moment == datetime(2026, 11, 24, 3, tzinfo=UTC):
            save(continue_training="never")
        if clock.moment == datetime(2026, 11, 24, 4, tzinfo=UTC):
            save(continue_training="0 1 * * *", retries=5)

    def start(plan: Plan) -> None:
        found.append(f"{clock.moment:%a %H:%M}, {plan.retries} retries")

    def hourly(plans: list[Plan]) -> list[Plan]:  # rereads only once an hour, to save time
        return plans if clock.moment.minute else reread(plans, file)

    plans = save(continue_training="0 2 * * *", retries=1)
    with pytest.raises(KeyboardInterrupt):
        run_forever(plans, start, clock.now, sleep, hourly)
    assert found == ["Tue 02:00, 1 retries", "Wed 01:00, 5 retries", "Thu 01:00, 5 retries"]


def test_a_change_just_before_a_start_does_not_lose_it() -> None:
    clock, found = Clock(MONDAY, MONDAY + timedelta(days=1)), list[int]()
    changed = datetime(2026, 11, 24, 1, 59, 45, tzinfo=UTC)

    def reread(plans: list[Plan]) -> list[Plan]:
        return [Plan("nightly", "0 2 * * *", retries=5 if clock.moment >= changed else 0)]

    with pytest.raises(KeyboardInterrupt):
        run_forever([NIGHTLY], lambda plan: found.append(plan.retries), clock.now, clock.sleep, reread)
    assert found == [5]


def test_nothing_is_due_twice() -> None:
    at_two = datetime(2026, 11, 24, 2, tzinfo=UTC)
    assert due([NIGHTLY], MONDAY, at_two) == [NIGHTLY]
    assert due([NIGHTLY], at_two, at_two + timedelta(hours=23)) == []


def schedule(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "baton", "schedule", *words]
    return subprocess.run(
        command, env=os.environ | environment, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.long
def test_the_plans_are_listed_with_their_next_starts() -> None:
    done = schedule("--list")
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stderr.splitlines()] == ["nightly", "weekly"]


@pytest.mark.long
def test_a_recipe_for_a_gpu_that_this_machine_lacks_starts_nothing(tmp_path: Path) -> None:
    recipe = shipped("continuous.yaml")
    recipe["pretrain"]["layout"] = {"device": "L4"}
    (tmp_path / "gpu.yaml").write_text(yaml.safe_dump(recipe))
    done = schedule("--now", "--recipe", str(tmp_path / "gpu.yaml"), CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 2
    assert "CUDA_VISIBLE_DEVICES='' hides all of them" in done.stderr and "nightly starts" not in done.stderr


def test_a_recipe_that_is_not_there_is_answered(tmp_path: Path) -> None:
    done = schedule("--list", "--recipe", str(tmp_path / "none.yaml"))
    assert done.returncode == 2
    assert "an existing YAML or JSON file" in done.stderr and "Traceback" not in done.stderr
