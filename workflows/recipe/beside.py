"""Paths in a recipe are relative to the recipe's folder."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

from baton.tasks.core.spec import Problem
from baton.tasks.custom.spec import CustomSpec
from baton.tasks.user_code.functions import Function, module_file
from baton.workflows.checks.parts import specs_in
from baton.workflows.recipe import Recipe
from baton.workflows.recipe.override import replaced

R = TypeVar("R", bound=Recipe)

FILES_ALONE = ("path", "file")  # fields that have no names of the hub


def from_here(recipe: R, folder: Path) -> tuple[R, list[Problem]]:
    """Return the recipe of a file in `folder` with its paths relative to the current folder, and a problem for each
    path that exists from there alone. Names of the hub and of installed modules stay as they are."""
    problems: list[Problem] = []
    if folder.resolve() == Path.cwd():
        return recipe, problems
    for field, path, attribute in list(_relative(recipe, folder)):
        beside = folder / path
        if not _exists(beside) and _exists(Path(path)):
            allowed = f"a path relative to the recipe; in {folder} there is none, only in the current folder"
            problems.append(Problem(field, f"{path}{attribute}", allowed))
        elif _exists(beside) or attribute or field.rpartition(".")[2] in FILES_ALONE:  # a check reports missing files
            recipe = replaced(recipe, field.split("."), f"{beside}{attribute}")
    return recipe, problems


def _relative(recipe: Recipe, folder: Path) -> Iterator[tuple[str, str, str]]:
    """Yield (field, relative path, attribute of that file, such as ":rows") of each."""
    for name, spec in specs_in(recipe):
        found = [(field, text, "") for field, text in spec.paths()]
        if isinstance(spec, Function) and spec.source is None:
            found += _file(spec, "name", folder)
        elif isinstance(spec, CustomSpec) and not spec.function and ":" in spec.stage:
            found += _file(Function(name=spec.stage), "stage", folder)
        for field, text, attribute in found:
            if not (text.startswith("~") or Path(text).is_absolute() or "://" in text):
                yield f"{name}.{field}", text, attribute


def _file(function: Function, field: str, folder: Path) -> list[tuple[str, str, str]]:
    """Return the function's file, unless it is in an installed module."""
    file = function.place
    if not file.endswith(".py"):
        module = module_file(folder, file)
        if not module:
            return []
        file = str(module.relative_to(folder))
    return [(field, file, f":{function.attribute}")]


def _exists(path: Path) -> bool:
    """Return whether a path exists, of a pattern the part before it."""
    before = Path(re.split(r"[^/]*[*?[]", str(path))[0])
    try:
        return path.exists() or (before != path and before.exists())
    except (OSError, ValueError):  # the check unusable_paths reports them
        return False
