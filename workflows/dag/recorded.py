"""Begin an execution with what it takes to run its recipe again."""

from collections.abc import Sequence
from typing import Any, TypeVar

from baton.infra.pod import this_pod
from baton.infra.tracking.execution import begin_execution
from baton.tasks.core.spec import Spec
from baton.tasks.custom.spec import CustomSpec
from baton.tasks.evaluate.spec import EvaluatorSpec
from baton.tasks.user_code.functions import Function
from baton.workflows.checks.table import checked
from baton.workflows.cluster.pod_defaults import fitted
from baton.workflows.recipe import Recipe, context_of

R = TypeVar("R", bound=Recipe)


def begin(recipe: R, plan: Sequence[str] = ()) -> R:
    """`begin_execution` of a recipe; `plan`: the titles of its stages, if they are known. The recipe is checked
    here, so that its problems are recorded, and in a pod returned with its pods' estimated resources. Raises
    RecipeError."""
    full_recipe: Recipe = with_source_code(recipe)
    dumped = recipe.model_dump(mode="json")
    also = recipe.tracking.also if recipe.tracking else []
    begin_execution(recipe.name, dumped, recipe.settings(), plan, full_recipe.model_dump(mode="json"), also)
    checked(recipe)
    return recipe if this_pod() is None else fitted(recipe, context_of(recipe))


def with_source_code(part: Any) -> Any:
    """A recipe, or a part of one, with the source of its functions and of its evaluation tasks' files filled in. Other
    inputs are left to the pods, which may have credentials that this machine lacks."""
    if isinstance(part, Function | EvaluatorSpec | CustomSpec):
        return part.pinned()
    if isinstance(part, Spec):
        updates = {name: with_source_code(value) for name, value in part}
        return part.model_copy(update={name: value for name, value in updates.items() if value != getattr(part, name)})
    if isinstance(part, dict):
        return {name: with_source_code(value) for name, value in part.items()}
    return [with_source_code(value) for value in part] if isinstance(part, list) else part
