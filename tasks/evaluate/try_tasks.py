"""Try lm-eval tasks before a run: load them, render their first documents, and see which metrics they give.

`tried(name, spec, model)` asks a separate process (infra.process.child), since a task's functions are the user's.
Nothing is downloaded: of a task whose data set is not on this machine only the config is read. The answers are made
up, so what the metrics are is not known, but which they are.
"""

import json
import os
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from infra.process.child import ChildFailed, ChildTooSlow, ask, reply
from tasks.core.job import StageError
from tasks.evaluate.spec import EvaluatorSpec
from tasks.evaluate.task_files import is_file_name
from tasks.user_code.load_function import described

DOCUMENTS = 2  # a metric that is their mean in these is one of documents; of a single one everything is
TIMEOUT_S = 300.0
OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}


@dataclass(frozen=True)
class Tried:
    """What is known of an evaluator's tasks. A metric's name is `<task>.<metric>`, with a filter's name at the end."""

    metrics: list[str] = field(default_factory=list)
    per_document: list[str] | None = None  # of these, the means over documents; None: not known
    undirected: list[str] = field(default_factory=list)  # of these, those of which it is not known what is better
    more: list[str] = field(default_factory=list)  # tasks that may have other metrics
    error: str = ""  # the tasks cannot be used
    untried: str = ""  # why not everything was tried

    def may_have(self, metric: str) -> bool:
        return metric in self.metrics or metric.startswith(tuple(f"{task}." for task in self.more))


def tried(name: str, spec: EvaluatorSpec, model: Path | None = None) -> Tried:
    """Try the tasks of evaluator `name`, with the chat template of `model`. Raises UserError if their files cannot be
    read."""
    resolved = spec.pinned()
    few = resolved.model_copy(update={"limit": min(resolved.limit or DOCUMENTS, DOCUMENTS)})
    return _tried(json.dumps({"name": name, "spec": few.model_dump(mode="json"), "model": str(model or "")}))


@cache  # a recipe is read several times in one run
def _tried(request: str) -> Tried:
    try:
        return Tried(**ask("tasks.evaluate.try_tasks", request, TIMEOUT_S))
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
    """All tasks together; if the data of some is not on this machine, each by itself."""
    try:
        return _answered(name, spec, model, folder)
    except StageError as error:
        if not (absent := _absent(error)):
            return Tried(error=str(error))
    if len(spec.lm_eval) == 1:
        return _from_configs(spec, folder, absent)
    each = [
        _try(name, spec.model_copy(update={"lm_eval": [task]}), model, folder / str(number))
        for number, task in enumerate(spec.lm_eval)
    ]
    return Tried(
        [metric for one in each for metric in one.metrics],
        None,
        [metric for one in each for metric in one.undirected],
        [task for one in each for task in one.more],
        "; ".join(one.error for one in each if one.error),
        "; ".join(one.untried for one in each if one.untried),
    )


def _answered(name: str, spec: EvaluatorSpec, model: str, folder: Path) -> Tried:
    """Render requests, and give them to lm-eval with made-up answers. Raises StageError."""
    import lm_eval.evaluator

    from tasks.evaluate.generation import generation
    from tasks.evaluate.guesses import Guesses
    from tasks.evaluate.harness import SameName, build, load_tasks, metric_name, run_tasks
    from tasks.evaluate.task_configs import named_metrics

    lm_eval.evaluator.add_env_info = lambda results: None  # it takes seconds to describe the machine
    tasks = load_tasks(name, spec, folder)
    guesses = Guesses(tasks.single, model)
    for request in build(tasks, guesses):
        if request.request_type == "generate_until":
            generation(request.args[1], "")
    try:
        harnessed = run_tasks(tasks, guesses)
    except SameName:
        raise
    except Exception as error:  # a task's function may be unable to score made-up answers
        named = named_metrics(tasks.names, tasks.manager.task_index)
        more = {*named.more, *(task.task_name for task in tasks.single)}
        untried = f"scoring made-up answers raises {described(error, folder)[:500]}, which a model's answers may not"
        return Tried([metric_name(*one) for one in sorted(named.metrics)], None, more=sorted(more), untried=untried)
    return Tried(
        [*harnessed.metrics],
        sorted({name for item in harnessed.items for name in item["rewards"]}),
        [name for name, metric in harnessed.metrics.items() if metric.higher_is_better is None],
    )


def _from_configs(spec: EvaluatorSpec, folder: Path, absent: str) -> Tried:
    """By the tasks' configs alone, without their data."""
    from tasks.evaluate.harness import metric_name
    from tasks.evaluate.task_configs import named_metrics, register

    manager, names = register(spec.lm_eval, [*(spec.task_files or ()), *spec.task_data], folder)
    named = named_metrics(names, manager.task_index)
    return Tried([metric_name(*one) for one in sorted(named.metrics)], None, more=sorted(named.more), untried=absent)


def _absent(error: BaseException | None) -> str:
    """What of the hub, or of another address, is not on this machine, if that is why loading failed."""
    while error is not None:
        from_afar = isinstance(error, FileNotFoundError) and ("://" in str(error) or "Hugging Face Hub" in str(error))
        if isinstance(error, ConnectionError) or from_afar:
            return str(error).partition("\n")[0]
        error = error.__cause__ or error.__context__
    return ""


if __name__ == "__main__":
    reply(_answer)
