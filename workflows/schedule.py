"""Start the launch plans by their cron expressions, without a Flyte cluster: `make schedule`.

    baton schedule [--recipe FILE] [--now] [--list]

One run at a time, each in its own process (`pyflyte run` of the launch plan). A run that falls due while another is
running, or while the machine is suspended, starts once afterwards; one that fell before this was started does not, and
the next run has its text. A failed run is restarted up to the recipe's schedule.retries times, and continues where it
stopped. A change of the recipe counts for the next start; while the file is invalid, the schedule stays as it was.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import click
from croniter import croniter

from baton.infra.errors import UserError
from baton.infra.process.launch import sigterm_as_exit
from baton.infra.progress import say

POLL_S = 30.0  # longest sleep: the clock is checked again after a suspend
SET_BACK = timedelta(hours=1)  # a clock that was this far ahead was wrong; after smaller steps nothing starts twice
PAUSE_S = 60.0  # before the first retry; doubled for each further one
WRONG_RECIPE = 2  # exit code: a retry would not help
LAUNCH_PLANS = Path(__file__).with_name("launch_plans.py")


@dataclass(frozen=True)
class Plan:
    """A launch plan's name and when it starts."""

    name: str
    cron: str  # five fields, UTC
    retries: int = 0  # of a run that fails

    def after(self, moment: datetime) -> datetime:
        """The first start later than `moment`."""
        start: datetime = croniter(self.cron, moment).get_next(datetime)
        return start


def due(plans: list[Plan], since: datetime, now: datetime) -> list[Plan]:
    """The plans with a start after `since` and not after `now`, each once, the earliest first."""
    starts = sorted((plan.after(since), index) for index, plan in enumerate(plans))
    return [plans[index] for start, index in starts if start <= now]


def plans_of(recipe: Path) -> list[Plan]:
    """The plans of a recipe's file. Raises RecipeError."""
    from baton.workflows.continuous_training.recipe import ContinuousRecipe  # imports many specs: not for --help
    from baton.workflows.recipe.error import RecipeError
    from baton.workflows.recipe.text import load

    read = load(recipe, ContinuousRecipe.model_validate)
    if problems := read.schedule.problems():
        raise RecipeError([problem.under("schedule") for problem in problems], read)
    return [Plan(name, cron, read.schedule.retries) for name, cron in read.crons().items()]


def reread(plans: list[Plan], recipe: Path) -> list[Plan]:
    """The plans as the recipe has them now; as they were if it is invalid, which the next run says."""
    try:
        read = plans_of(recipe)
    except UserError:
        return plans
    if read != plans:
        say(f"{recipe} has changed")
        show(read)
    return read


def show(plans: list[Plan]) -> None:
    for plan in plans:
        say(f"{plan.name:<10} {plan.cron:<14} next {plan.after(datetime.now(UTC)):%Y-%m-%d %H:%M} UTC")


def run_forever(
    plans: list[Plan],
    start: Callable[[Plan], object],
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
    sleep: Callable[[float], None] = time.sleep,
    reread: Callable[[list[Plan]], list[Plan]] = lambda plans: plans,
) -> None:
    """Start each plan when it is due, until interrupted. `now` and `sleep` are the clock; `reread` returns
    the current plans. Starts before a change of their times are not made up for."""
    since = now()
    say(f"starts before {since:%Y-%m-%d %H:%M} UTC are not made up for (--now starts every plan at once)")
    while True:
        read = reread(plans)
        if [plan.cron for plan in read] != [plan.cron for plan in plans]:
            since = max(since, now() - timedelta(seconds=POLL_S))
        plans = read
        if (left := (min(plan.after(since) for plan in plans) - now()).total_seconds()) > 0:
            sleep(min(left, POLL_S))
            if since - now() > SET_BACK:
                since = now()
            continue
        moment = now()
        for plan in due(plans, since, moment):
            start(plan)
        since = moment


def run_plan(plan: Plan, sleep: Callable[[float], None] = time.sleep) -> int:
    """Run a plan, with retries when it fails; returns the last exit code."""
    for attempt in range(plan.retries + 1):
        retry = f" (retry {attempt} of {plan.retries})" if attempt else ""
        say(f"{datetime.now(UTC):%Y-%m-%d %H:%M} {plan.name} starts{retry}")
        code = _process([str(Path(sys.executable).with_name("pyflyte")), "run", str(LAUNCH_PLANS), plan.name])
        if code in (0, WRONG_RECIPE) or attempt == plan.retries:
            break
        sleep(PAUSE_S * 2**attempt)
    say(f"{datetime.now(UTC):%Y-%m-%d %H:%M} {plan.name} {'ended' if code == 0 else f'failed, exit code {code}'}")
    return code


def _process(command: list[str]) -> int:
    """Run a command and return its exit code; it is terminated with this process."""
    process = subprocess.Popen(command)
    with sigterm_as_exit():
        try:
            return process.wait()
        except (KeyboardInterrupt, SystemExit):
            process.terminate()
            process.wait()
            raise


@click.command()
@click.option("--recipe", type=click.Path(path_type=Path), help="Continuous recipe; else BATON_CONTINUOUS has it.")
@click.option("--now", is_flag=True, help="Start every plan once before waiting.")
@click.option("--list", "only_list", is_flag=True, help="Print the plans and their next starts, and exit.")
def main(recipe: Path | None, now: bool, only_list: bool) -> None:
    """Start the launch plans by their cron expressions, until Ctrl-C."""
    if recipe:
        os.environ["BATON_CONTINUOUS"] = str(recipe.absolute())
    from baton.workflows import launch_plans  # imports Flyte: not for --help
    from baton.workflows.checks.machine import checked_here

    plans = plans_of(launch_plans.path())
    show(plans)
    if addresses := launch_plans.recipe().schedule.notify:
        say(f"schedule.notify: {', '.join(addresses)}: no emails are sent from here, only by a Flyte cluster's admin")
    if only_list:
        return
    checked_here(launch_plans.recipe())
    for plan in plans if now else ():
        run_plan(plan)
    run_forever(plans, run_plan, reread=lambda plans: reread(plans, launch_plans.path()))
