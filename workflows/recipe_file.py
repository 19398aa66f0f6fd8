"""How `pyflyte run … --recipe FILE` reads a recipe: two functions of flytekit's command line, wrapped.

The file is read by `load`: flytekit alone would read YAML 1.1 without limits, and show a traceback of a broken file.
It is also held against what this machine has (workflows/machine.py), with --remote against what a cluster's pods have,
before anything is registered (workflows/remote.py).
And `--help` says where the fields are described; flytekit alone prints the whole JSON schema, some 500 lines.
Importing this module wraps the two functions.
"""

from typing import Any

import click
from flytekit.clis.sdk_in_container import run
from flytekit.interaction.click_types import JsonParamType

from workflows.given import for_a_cluster
from workflows.machine import checked_here
from workflows.recipe import Recipe
from workflows.recipe_text import load
from workflows.remote import checked, pass_on

HELP = "Recipe file, YAML or JSON. `python -m workflows.describe` lists every field."

_convert = JsonParamType.convert
_to_click_option = run.to_click_option


def convert(self: JsonParamType, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
    model = self._python_type
    if isinstance(value, str) and isinstance(model, type) and issubclass(model, Recipe):
        name = param.name if param and param.name else "recipe"
        if not (ctx and getattr(ctx.obj, "is_remote", False)):
            return load(value, checked_here(model.model_validate), name)
        pass_on(ctx.obj)
        with for_a_cluster():
            return load(value, checked(model.model_validate, ctx.obj), name)
    return _convert(self, value, param, ctx)


def to_click_option(*args: Any, **kwargs: Any) -> click.Option:
    option: click.Option = _to_click_option(*args, **kwargs)
    if any(isinstance(each, type) and issubclass(each, Recipe) for each in (*args, *kwargs.values())):
        option.help = HELP
    return option


JsonParamType.convert = convert
run.to_click_option = to_click_option
