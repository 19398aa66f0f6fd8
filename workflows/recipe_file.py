"""How `pyflyte run … --recipe FILE` reads a recipe, in two words to flytekit's command line.

A file that is not YAML is answered as a wrong recipe is; flytekit alone would show a traceback. And
`--help` says where the fields are described; flytekit alone prints the whole JSON schema, some 500
lines. Importing this module wraps the two functions; it can go when flytekit does either itself.
"""

from pathlib import Path
from typing import Any

import click
import yaml
from flytekit.clis.sdk_in_container import run
from flytekit.interaction.click_types import JsonParamType

from tasks.spec import Problem
from workflows.recipe import Recipe
from workflows.recipe_error import RecipeError

HELP = "Recipe file, YAML or JSON. `python -m workflows.describe` lists every field."

_convert = JsonParamType.convert
_to_click_option = run.to_click_option


def convert(self: JsonParamType, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
    if isinstance(value, str) and not value.lstrip().startswith("{") and not Path(value).exists():
        raise RecipeError([Problem(_name(param), value, "an existing YAML or JSON file")])
    try:
        return _convert(self, value, param, ctx)
    except (yaml.YAMLError, OSError, UnicodeDecodeError, TypeError) as error:
        raise RecipeError([Problem(_name(param), value, f"a YAML or JSON file: {error}")]) from error


def _name(param: click.Parameter | None) -> str:
    return param.name if param and param.name else "recipe"


def to_click_option(*args: Any, **kwargs: Any) -> click.Option:
    option: click.Option = _to_click_option(*args, **kwargs)
    if any(isinstance(each, type) and issubclass(each, Recipe) for each in (*args, *kwargs.values())):
        option.help = HELP
    return option


JsonParamType.convert = convert
run.to_click_option = to_click_option
