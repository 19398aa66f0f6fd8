"""Read the recipe of `pyflyte run … --recipe FILE`, and check it against this machine (workflows/checks/machine.py) or,
with --remote, against what a cluster's pods have (workflows/cluster/remote.py) before anything is registered. Importing
this module makes `pyflyte` read recipes so (infra/flyte/install.py).
"""

from typing import Any

from baton.infra.commands import command
from baton.infra.flyte.install import read_option
from baton.infra.project import apply
from baton.workflows.checks.run_context import for_a_cluster
from baton.workflows.recipe import Recipe
from baton.workflows.recipe.text import load

HELP = f"Recipe file, YAML or JSON. `{command('baton describe')}` lists every field."


def read(value: str, model: type[Recipe], name: str, run: Any) -> Recipe:
    """Read a recipe from `value`, a file's path or JSON. `run`: flytekit's RunLevelParams. Raises RecipeError, NoImage,
    UserError."""
    # imported here: pods import this module too, and have neither of these
    if not getattr(run, "is_remote", False):
        from baton.workflows.checks.machine import checked_here

        return load(value, model.model_validate, name, checked_here)
    from baton.workflows.cluster.remote import checked_for, pass_on

    pass_on(run)
    with for_a_cluster():
        return load(value, model.model_validate, name, lambda recipe: checked_for(recipe, run))


apply()
read_option(Recipe, read, HELP)
