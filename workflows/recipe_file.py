"""Makes `pyflyte run … --recipe FILE` answer a file that is not YAML as it answers a wrong recipe.

flytekit turns YAML's own errors into a traceback and exit code 1. Importing this module wraps the
one method that reads the file; it can go when flytekit reports them as bad parameters itself.
"""

from typing import Any

import click
import yaml
from flytekit.interaction.click_types import JsonParamType

from tasks.spec import Problem
from workflows.recipe_error import RecipeError

_convert = JsonParamType.convert


def convert(self: JsonParamType, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
    try:
        return _convert(self, value, param, ctx)
    except (yaml.YAMLError, OSError, UnicodeDecodeError, TypeError) as error:
        name = param.name if param and param.name else "recipe"
        raise RecipeError([Problem(name, value, f"a YAML or JSON file: {error}")]) from error


JsonParamType.convert = convert
