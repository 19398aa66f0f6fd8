"""The launch plans: which workflow runs when, on which recipe.

    pyflyte --config FILE register workflows --activate-launchplans --version "$(baton version FILE)"
    make schedule    on this machine, without a Flyte cluster

BATON_CONTINUOUS names the recipe; the default is workflows/recipes/continuous.yaml. It is fixed at registration: a
plan's version identifies its recipe.
"""

import os
from functools import cache
from pathlib import Path
from typing import Any

from flytekit import CronSchedule, Email, LaunchPlan, WorkflowExecutionPhase

from baton.infra.flyte.command_line import registration
from baton.infra.flyte.hooks import one_at_a_time
from baton.infra.progress import say
from baton.workflows.checks.run_context import for_a_cluster
from baton.workflows.checks.table import checked
from baton.workflows.cluster.remote import checked_for
from baton.workflows.continuous import continue_training, refresh_rl
from baton.workflows.continuous_training.recipe import ContinuousRecipe
from baton.workflows.recipe.text import load

RECIPE = "BATON_CONTINUOUS"
DEFAULT = Path(__file__).parent / "recipes/continuous.yaml"
NOTIFIED_PHASES = [WorkflowExecutionPhase.FAILED, WorkflowExecutionPhase.TIMED_OUT]


def path() -> Path:
    """The recipe's file."""
    return Path(os.environ.get(RECIPE) or DEFAULT)


@cache
def recipe() -> ContinuousRecipe:
    """The recipe of the plans; at registration it is checked against what a cluster's pods have. Raises RecipeError,
    NoImage."""
    cluster = registration()
    if cluster is None:
        return load(path(), ContinuousRecipe.model_validate, RECIPE, checked)
    with for_a_cluster():
        loaded = load(path(), ContinuousRecipe.model_validate, RECIPE, lambda recipe: checked_for(recipe, cluster))
    if addresses := loaded.schedule.notify:
        say(
            f"schedule.notify: {', '.join(addresses)}: Flyte's admin sends emails only if an email service is set up "
            "in its `notifications`, which can't be checked from here"
        )
    return loaded


def plan(name: str, workflow: Any) -> LaunchPlan:
    """A plan for one workflow on the recipe, by its cron expression. A run that falls due while another is running is
    skipped: the next run takes its new text."""
    addresses = recipe().schedule.notify
    return LaunchPlan.get_or_create(
        workflow,
        name,
        fixed_inputs={"recipe": recipe()},
        schedule=CronSchedule(schedule=recipe().crons()[name]),
        notifications=[Email(NOTIFIED_PHASES, addresses)] if addresses else [],
        concurrency=one_at_a_time(),
    )


nightly = plan("nightly", continue_training)
PLANS = [nightly]
if recipe().refresh:
    weekly = plan("weekly", refresh_rl)
    PLANS.append(weekly)
