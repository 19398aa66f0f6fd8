"""The function of a custom stage, and its check in a separate process.

`python -m baton.tasks.custom.function` is that process (infra/process/child.py): it receives a CustomSpec and returns
problems.
"""

import inspect
import json
from collections.abc import Callable
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_type_hints

from pydantic import BaseModel, ValidationError

from baton.infra.process.child import ChildFailed, ask, reply
from baton.tasks.core.job import StageError
from baton.tasks.core.spec import Problem, Spec
from baton.tasks.custom.spec import CustomSpec

TIMEOUT_S = 60.0
ARGUMENTS = 4  # spec, inputs, output, job


def load(spec: CustomSpec, folder: Path) -> tuple[Callable[..., Any], type[BaseModel]]:
    """Write the function's source below the folder. Return the function and the type of its first argument. Raises
    StageError."""
    named = spec.pinned().function
    assert named is not None
    function = named.load(folder)
    names = [*inspect.signature(function).parameters]
    if len(names) != ARGUMENTS:
        raise StageError(f"{named.name} has {len(names)} arguments; a stage has four: spec, inputs, output, job")
    kind = get_type_hints(function).get(names[0])
    if not (isinstance(kind, type) and issubclass(kind, BaseModel)):
        raise StageError(f"{named.name}: its first argument, {names[0]}, must be annotated with a pydantic model")
    return function, kind


def own_fields(kind: type[BaseModel], spec: CustomSpec) -> BaseModel:
    """Return the stage's own fields as the function's first argument. An unknown name is an error, unless the model
    itself configures `extra`, and so is a value of another type. Raises ValidationError."""
    extra: Literal["forbid"] | None = "forbid" if kind.model_config.get("extra") is None else None
    return kind.model_validate_json(json.dumps(spec.spec), strict=True, extra=extra)  # in JSON a list is a valid tuple


def checked(spec: CustomSpec) -> list[Problem]:
    """Import the function in a separate process, and check the stage's own fields."""
    return [Problem(**problem) for problem in _checked(spec.pinned().model_dump_json())]


@cache  # a recipe is read several times in one run
def _checked(spec: str) -> list[dict[str, Any]]:
    try:
        return list(ask("baton.tasks.custom.function", spec, TIMEOUT_S))
    except ChildFailed as error:
        return [asdict(Problem("stage", None, f"a function that can be imported; {error}"))]


def problems_in(spec: CustomSpec, folder: Path) -> list[Problem]:
    """Return the problems of the stage's own fields, or the reason why the function cannot be loaded."""
    try:
        _, kind = load(spec, folder)
        fields = own_fields(kind, spec)
    except StageError as error:
        return [Problem("stage", spec.stage, f"a function that can be used as a stage; {error}")]
    except ValidationError as error:
        return [
            Problem(".".join(["spec", *map(str, item["loc"])]), item["input"], item["msg"])
            for item in error.errors(include_url=False)
        ]
    return [problem.under("spec") for problem in fields.problems()] if isinstance(fields, Spec) else []


def _answer(spec: str, folder: Path) -> list[dict[str, Any]]:
    return [asdict(problem) for problem in problems_in(CustomSpec.model_validate_json(spec), folder)]


if __name__ == "__main__":
    reply(_answer)
