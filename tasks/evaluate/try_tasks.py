"""Try lm-eval tasks before a run by loading them and rendering their first documents.

`tried(name, spec, model)` uses a separate process (baton.infra.process.child), since a task's functions are the user's.
Nothing is downloaded: if a task's data set is not on this machine, only its config is read.
"""

import json
import os
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from baton.infra.process.child import ChildFailed, ChildTooSlow, ask, reply
from baton.tasks.core.job import StageError
from baton.tasks.evaluate.spec import EvaluatorSpec
from baton.tasks.evaluate.task_files import is_file_name

DOCUMENTS = 2
TIMEOUT_S = 300.0
OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}


@dataclass(frozen=True)
class Tried:
    """Result of trying an evaluator's tasks."""

    error: str = ""  # why the tasks cannot be used
    untried: str = ""  # why not all was tried


def tried(name: str, spec: EvaluatorSpec, model: Path | None = None) -> Tried:
    """Try the tasks of evaluator `name`, with the chat template of `model`. Raises UserError if their files cannot be
    read."""
    resolved = spec.pinned()
    few = resolved.model_copy(update={"limit": min(resolved.limit or DOCUMENTS, DOCUMENTS)})
    return _tried(json.dumps({"name": name, "spec": few.model_dump(mode="json"), "model": str(model or "")}))


@cache  # a recipe is read several times in one run
def _tried(request: str) -> Tried:
    try:
        return Tried(**ask("baton.tasks.evaluate.try_tasks", request, TIMEOUT_S))
    except ChildTooSlow:
        return Tried(untried=f"loading them takes longer than {TIMEOUT_S:g} s")
    except ChildFailed as error:
        return Tried(error=str(error))


def _answer(request: str, folder: Path) -> dict[str, Any]:
    os.chdir(folder)
    os.environ |= OFFLINE
    asked = json.loads(request)
    spec = EvaluatorSpec.model_validate(asked["spec"])
    if all(map(is_file_name, spec.lm_eval)):
        os.environ["HF_DATASETS_CACHE"] = f"{folder}/datasets"  # copies of local files
    return asdict(_try(asked["name"], spec, asked["model"], folder / "tasks"))


def _try(name: str, spec: EvaluatorSpec, model: str, folder: Path) -> Tried:
    """Try all tasks together or, if data of some is not on this machine, one by one."""
    try:
        _render(name, spec, model, folder)
        return Tried()
    except StageError as error:
        if not (absent := _absent(error)):
            return Tried(error=str(error))
    if len(spec.lm_eval) == 1:
        return Tried(untried=absent)
    each = [
        _try(name, spec.model_copy(update={"lm_eval": [task]}), model, folder / str(number))
        for number, task in enumerate(spec.lm_eval)
    ]
    errors, untried = (one.error for one in each if one.error), (one.untried for one in each if one.untried)
    return Tried("; ".join(errors), "; ".join(untried))


def _render(name: str, spec: EvaluatorSpec, model: str, folder: Path) -> None:
    """Load the tasks, and render the requests of their first documents. Raises StageError."""
    import lm_eval.evaluator

    from baton.tasks.evaluate.generation import generation
    from baton.tasks.evaluate.harness import build, load_tasks
    from baton.tasks.evaluate.renderer import Renderer

    lm_eval.evaluator.add_env_info = lambda results: None  # describing the machine takes seconds
    tasks = load_tasks(name, spec, folder)
    for request in build(tasks, Renderer(model)):
        if request.request_type == "generate_until":
            generation(request.args[1], "")


def _absent(error: BaseException | None) -> str:
    """Return the message about data of the hub or another address that is not on this machine, if loading failed for
    that reason, or ""."""
    while error is not None:
        from_afar = isinstance(error, FileNotFoundError) and ("://" in str(error) or "Hugging Face Hub" in str(error))
        if isinstance(error, ConnectionError) or from_afar:
            return str(error).partition("\n")[0]
        error = error.__cause__ or error.__context__
    return ""


if __name__ == "__main__":
    reply(_answer)
