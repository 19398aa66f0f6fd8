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

from infra.progress import say
from workflows.continuous import continue_training, refresh_rl
from workflows.continuous_recipe import ContinuousRecipe
from workflows.given import for_a_cluster
from workflows.recipe_text import load
from workflows.remote import checked, registration

RECIPE = "BATON_CONTINUOUS"
DEFAULT = Path(__file__).parent / "recipes/continuous.yaml"
# of a run, what somebody should be told of
BAD_ENDS = [WorkflowExecutionPhase.FAILED, WorkflowExecutionPhase.TIMED_OUT]


@cache
def recipe() -> ContinuousRecipe:
    """The recipe that the plans are for; one that is registered is held against what a cluster's pods have. Raises
    RecipeError, NoImage."""
    path = Path(os.environ.get(RECIPE) or DEFAULT)
    cluster = registration()
    if cluster is None:
        return load(path, ContinuousRecipe.model_validate, RECIPE)
    with for_a_cluster():
        found = load(path, checked(ContinuousRecipe.model_validate, cluster), RECIPE)
    if told := found.schedule.notify:
        say(
            f"schedule.notify: {', '.join(told)}: told by Flyte's admin, if an email service is set up in its "
            "`notifications`; it does not say whether one is. If not, nobody is told"
        )
    return found


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
