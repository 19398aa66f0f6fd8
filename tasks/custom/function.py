"""The function of a custom stage, and its check in a process of its own.

python -m tasks.custom.function FOLDER     stdin: a CustomSpec as JSON; stdout: problems as JSON
"""

import inspect
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, get_type_hints

from pydantic import BaseModel, ValidationError

from tasks.custom.spec import CustomSpec
from tasks.job import StageError
from tasks.spec import Problem, Spec

TIMEOUT_S = 60.0
ARGUMENTS = 4  # spec, inputs, output, job


def load(spec: CustomSpec, folder: Path) -> tuple[Callable[..., Any], type[BaseModel]]:
    """The function, its source written below the folder, and the type of its first argument. Raises StageError."""
    found = spec.as_found().function
    assert found is not None
    function = found.load(folder)
    names = [*inspect.signature(function).parameters]
    if len(names) != ARGUMENTS:
        raise StageError(f"{found.name} has {len(names)} arguments; a stage has four: spec, inputs, output, job")
    kind = get_type_hints(function).get(names[0])
    if not (isinstance(kind, type) and issubclass(kind, BaseModel)):
        raise StageError(f"{found.name}: its first argument, {names[0]}, must be annotated with a pydantic model")
    return function, kind


def checked(spec: CustomSpec) -> list[Problem]:
    """Import the function in a separate process, and check the stage's own fields."""
    return [Problem(**problem) for problem in _checked(spec.as_found().model_dump_json())]


@cache  # a recipe is read several times in one run
def _checked(spec: str) -> list[dict[str, Any]]:
    path = os.pathsep.join(filter(None, [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH")]))
    with TemporaryDirectory(prefix="baton-stage-") as folder:
        try:
            process = subprocess.run(
                [sys.executable, "-P", "-m", "tasks.custom.function", folder],
                input=spec,
                env=os.environ | {"PYTHONPATH": path},
                timeout=TIMEOUT_S,
                check=False,
                capture_output=True,
                text=True,
            )
        except subprocess.TimeoutExpired:
            return [asdict(Problem("stage", None, f"a function whose file is imported within {TIMEOUT_S:g} s"))]
    if process.returncode:
        end = process.stderr.strip()[-500:]
        return [asdict(Problem("stage", None, f"a function; its process exited with code {process.returncode}: {end}"))]
    return list(json.loads(process.stdout))


def problems_in(spec: CustomSpec, folder: Path) -> list[Problem]:
    """The problems of the stage's own fields, or why the function cannot be loaded."""
    try:
        _, kind = load(spec, folder)
        own = kind.model_validate(spec.spec)
    except StageError as error:
        return [Problem("stage", spec.stage, f"a function that can be used as a stage; {error}")]
    except ValidationError as error:
        return [
            Problem(".".join(["spec", *map(str, item["loc"])]), item["input"], item["msg"])
            for item in error.errors(include_url=False)
        ]
    return [problem.under("spec") for problem in own.problems()] if isinstance(own, Spec) else []


def main(folder: Path) -> None:
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the user's file prints when it is imported
    spec = CustomSpec.model_validate_json(sys.stdin.read())
    json.dump([asdict(problem) for problem in problems_in(spec, folder)], output, default=repr)
    output.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
