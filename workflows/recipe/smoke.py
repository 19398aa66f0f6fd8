"""A recipe cut to a few steps of each stage, to try everything that its run will touch within minutes.

The data, the shapes, batches, layouts, placements and rewards stay as they are, since these are what fails; corpora and
sets of rows are prepared in full, and the run that follows finds them in the cache. Each spec declares what is cut
(`Spec.smoke`).
"""

from typing import Any, TypeVar

from baton.tasks.core.spec import Spec
from baton.workflows.recipe import Recipe

R = TypeVar("R", bound=Recipe)

SUFFIX = "-smoke"


def smoke(recipe: R) -> R:
    """Return the recipe for a smoke run. Its names have a suffix, so that it moves no alias and replaces no model."""
    cut: R = _cut(recipe)
    changes: dict[str, Any] = {"name": f"{cut.name[:57]}{SUFFIX}"}
    if cut.publish:
        own = {"name": f"{cut.publish.name[:94]}{SUFFIX}", "alias": None, "hub": None}
        changes["publish"] = cut.publish.model_copy(update=own)
    return cut.model_copy(update=changes)


def _cut(part: Any) -> Any:
    if isinstance(part, list):
        return [_cut(each) for each in part]
    if isinstance(part, dict):
        return {name: _cut(each) for name, each in part.items()}
    if not isinstance(part, Spec):
        return part
    changes = {name: _cut(value) for name, value in part}
    return part.model_copy(update=changes | part.smoke())
