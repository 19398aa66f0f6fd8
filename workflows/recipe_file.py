"""Read the recipe of `pyflyte run … --recipe FILE`, and check it against this machine (workflows/machine.py) or, with
--remote, against what a cluster's pods have (workflows/remote.py) before anything is registered. Importing this module
sets it up.
"""

from typing import Any

from infra.commands import command
from infra.flyte_hooks import add_to_version, wrap_json_option
from infra.pod_spec import secrets_of_all
from workflows.machine import checked_here
from workflows.recipe import Recipe
from workflows.recipe_text import load
from workflows.remote import checked, pass_on
from workflows.run_context import for_a_cluster

HELP = f"Recipe file, YAML or JSON. `{command('python -m workflows.describe')}` lists every field."


def read(value: str, model: type[Recipe], name: str, run: Any) -> Recipe:
    """`value`: a file's path or JSON. `run`: flytekit's RunLevelParams. Raises RecipeError, NoImage, Stopped."""
    if not getattr(run, "is_remote", False):
        return load(value, checked_here(model.model_validate), name)
    pass_on(run)
    with for_a_cluster():
        return load(value, checked(model.model_validate, run), name)


wrap_json_option(Recipe, read, HELP)
add_to_version(*secrets_of_all())
