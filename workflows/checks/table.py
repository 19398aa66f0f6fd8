"""Every check of a recipe before compute, by name. Validating a recipe runs none of them: `plan`, `run` and `schedule`
do."""

from collections.abc import Callable, Iterable
from typing import TypeVar

from baton.tasks.core.spec import Problem
from baton.workflows.checks.environments import problems_of_environments
from baton.workflows.checks.files import files, unusable_paths
from baton.workflows.checks.generations import same_as_before
from baton.workflows.checks.hardware import disk, hardware, layout
from baton.workflows.checks.memory import tuning_memory, vllm_memory
from baton.workflows.checks.models import adapted_layers, problems_of_models
from baton.workflows.checks.placements import placements
from baton.workflows.checks.rewards import problems_of_rewards
from baton.workflows.checks.rows import problems_of_rows
from baton.workflows.checks.run_context import RunContext
from baton.workflows.checks.secrets import secret_values, unset_variables
from baton.workflows.checks.sections import FIT, best, decontamination, fields, order
from baton.workflows.checks.shapes import convertible, head_size, positions, same_model, same_tokenizer, vocabulary_size
from baton.workflows.checks.stages import functions_of_stages, names_of_stages
from baton.workflows.checks.tasks import problems_of_tasks
from baton.workflows.checks.trackers import problems_of_trackers
from baton.workflows.cluster.pod_defaults import too_small
from baton.workflows.plan.costs import over_budget
from baton.workflows.recipe import Recipe, context_of
from baton.workflows.recipe.error import RecipeError, first_of_each

R = TypeVar("R", bound=Recipe)
Check = Callable[[RunContext], Iterable[Problem]]

# the checks that the plan of the DAG relies on
FOR_A_DAG: dict[str, tuple[Check, ...]] = {
    "fields": (fields,),
    "sections": (*FIT, names_of_stages),
    "files": (files,),
}
CHECKS: dict[str, tuple[Check, ...]] = FOR_A_DAG | {
    "models": (
        problems_of_models,
        vocabulary_size,
        positions,
        head_size,
        convertible,
        same_model,
        same_tokenizer,
        adapted_layers,
        same_as_before,
    ),
    "rows": (problems_of_rows, decontamination),
    "rewards": (problems_of_rewards,),
    "environments": (problems_of_environments,),
    "stages": (functions_of_stages,),
    "environment variables": (unset_variables,),
    "metrics": (best, problems_of_tasks),
    "hardware": (hardware, layout),
    "memory": (tuning_memory, vllm_memory),
    "disk": (disk,),
    "placements": (placements, over_budget),
    "pods": (too_small,),
    "trackers": (problems_of_trackers,),
}


def problems_of(recipe: Recipe, *more: Check) -> list[Problem]:
    """The problems that each check finds, those of `more` only for fields that have none yet."""
    context = context_of(recipe)
    if unusable := unusable_paths(context):
        return [*order(context), *unusable]
    if secrets := [*secret_values(context)]:
        return [*recipe.problems(), *fields(context), *order(context), *secrets]
    problems = [problem for of_one in CHECKS.values() for check in of_one for problem in check(context)]
    more_found = [problem for check in more for problem in check(context)]
    return first_of_each([*recipe.problems(), *problems], more_found)


def unreadable(context: RunContext) -> list[Problem]:
    """The problems for which nothing that the recipe names is looked up: a secret, which would be in requests and in
    messages, or a path that cannot be looked up."""
    return unusable_paths(context) or [*secret_values(context)]


def fits_together(context: RunContext) -> bool:
    """Return whether the DAG's calls can be listed. Looks nothing up."""
    return not any(problem for check in FOR_A_DAG["sections"] for problem in check(context))


def has_dag(context: RunContext) -> bool:
    """Return whether the recipe is valid enough to plan its DAG."""
    return not unreadable(context) and not any(
        problem for of_one in FOR_A_DAG.values() for check in of_one for problem in check(context)
    )


def checked(recipe: R, *more: Check) -> R:
    """Return the recipe, if no check finds a problem. Raises RecipeError."""
    if problems := problems_of(recipe, *more):
        raise RecipeError(problems, recipe)
    return recipe


def problems_of_rest(error: RecipeError) -> list[Problem]:
    """The problems that checks find in a recipe with invalid fields: all checks if the fields are merely unknown, else
    those that need no other section's values."""
    if not isinstance(error.recipe, Recipe):
        return []
    if not error.wrong:
        return problems_of(error.recipe)
    context = context_of(error.recipe)
    problems = unreadable(context) or [
        problem for of_one in FOR_A_DAG.values() for check in of_one for problem in check(context)
    ]
    return [problem for problem in problems if problem.path.partition(".")[0] not in error.wrong]
