"""Begin an execution with what it takes to run its recipe again."""

from collections.abc import Sequence
from typing import TypeVar

from infra.pod import this_pod
from infra.tracking.execution import begin_execution
from workflows.checks.table import checked
from workflows.pod_defaults import fitted
from workflows.recipe import Recipe, context_of
from workflows.uploads import with_source_code

R = TypeVar("R", bound=Recipe)


def begin(recipe: R, plan: Sequence[str] = ()) -> R:
    """`begin_execution` of a recipe; `plan`: the titles of its stages, if they are known. The recipe is checked
    here, so that its problems are recorded, and in a pod returned with its pods' estimated resources. Raises
    RecipeError."""
    whole: Recipe = with_source_code(recipe)
    dumped = recipe.model_dump(mode="json")
    begin_execution(recipe.name, dumped, recipe.settings(), plan, whole.model_dump(mode="json"))
    checked(recipe)
    return recipe if this_pod() is None else fitted(recipe, context_of(recipe))
