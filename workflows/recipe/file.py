"""Read the recipe of `pyflyte run … --recipe FILE`, and check it against this machine (workflows/checks/machine.py) or,
with --remote, against a cluster's pods (workflows/cluster/remote.py) before anything is registered. Importing this
module sets it up.
"""

from typing import Any

from infra.commands import command
from infra.flyte.hooks import add_to_version, wrap_json_option
from infra.pod_spec import secrets_of_all
from workflows.checks.run_context import for_a_cluster
from workflows.recipe import Recipe
from workflows.recipe.text import load

HELP = f"Recipe file, YAML or JSON. `{command('python -m workflows.describe')}` lists every field."


def read(value: str, model: type[Recipe], name: str, run: Any) -> Recipe:
    """Read a recipe from `value`, a file's path or JSON. `run`: flytekit's RunLevelParams. Raises RecipeError, NoImage,
    UserError."""
    # imported here: pods import this module too, and have neither of these
    if not getattr(run, "is_remote", False):
        from workflows.checks.machine import checked_here

        return load(value, model.model_validate, name, checked_here)
    from workflows.cluster.remote import checked_for, pass_on

    pass_on(run)
    with for_a_cluster():
        return load(value, model.model_validate, name, lambda recipe: checked_for(recipe, run))


wrap_json_option(Recipe, read, HELP)
add_to_version(*secrets_of_all())
