"""The launch plans: what runs by itself, when, on which recipe.

    pyflyte --config FILE register workflows --activate-launchplans --version "$(python -m workflows.version)"
    make schedule    on this machine, without a Flyte cluster

BATON_CONTINUOUS names the recipe; the default is workflows/recipes/continuous.yaml. It is fixed when the plans are
registered: a plan is one recipe's, and its version says which.
"""

import os
from functools import cache
from pathlib import Path

from flytekit import CronSchedule, Email, LaunchPlan, WorkflowExecutionPhase
from flytekit.core.workflow import WorkflowBase
from flytekit.models.concurrency import ConcurrencyLimitBehavior, ConcurrencyPolicy

from workflows.continuous import continue_training, refresh_rl
from workflows.continuous_recipe import ContinuousRecipe
from workflows.recipe_text import load

RECIPE = "BATON_CONTINUOUS"
DEFAULT = Path(__file__).parent / "recipes/continuous.yaml"
# of a run, what somebody should be told of
BAD_ENDS = [WorkflowExecutionPhase.FAILED, WorkflowExecutionPhase.TIMED_OUT]


@cache
def recipe() -> ContinuousRecipe:
    """The recipe that the plans are for. Raises RecipeError."""
    path = Path(os.environ.get(RECIPE) or DEFAULT)
    return load(path, ContinuousRecipe.model_validate, RECIPE)


def plan(name: str, workflow: WorkflowBase, cron: str) -> LaunchPlan:
    """One workflow on the recipe, at the times of a cron expression. A run that is due while another is going is
    skipped: its new text is the next run's."""
    told = recipe().schedule.notify
    return LaunchPlan.get_or_create(
        workflow,
        name,
        fixed_inputs={"recipe": recipe()},
        schedule=CronSchedule(schedule=cron),
        notifications=[Email(BAD_ENDS, told)] if told else [],
        concurrency=ConcurrencyPolicy(1, ConcurrencyLimitBehavior.SKIP),
    )


nightly = plan("nightly", continue_training, recipe().schedule.continue_training)
PLANS = [nightly]
if recipe().refresh:
    weekly = plan("weekly", refresh_rl, recipe().schedule.refresh_rl)
    PLANS.append(weekly)
