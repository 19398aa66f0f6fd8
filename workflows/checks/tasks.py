"""Check lm-eval's tasks before any compute: their files and their first documents.

Where lm-eval is not installed nothing is known of them; where an evaluation runs on another machine, what fails here is
only printed, since that machine may have other packages and data. Which metrics they have is known from the base
model's evaluation.
"""

import importlib.util
from collections.abc import Iterator
from pathlib import Path

from baton.infra.errors import UserError
from baton.infra.pod import this_pod
from baton.infra.progress import say_once
from baton.infra.storage.buckets import is_bucket
from baton.tasks.core.spec import Problem
from baton.tasks.evaluate.spec import EvaluateSpec, EvaluatorSpec
from baton.tasks.evaluate.try_tasks import Tried, tried
from baton.workflows.checks.run_context import RunContext, runs_on_a_cluster


def problems_of_tasks(context: RunContext) -> list[Problem]:
    return [problem for name, spec in _evaluators(context).items() for problem in _problems(context, name, spec)]


def _problems(context: RunContext, name: str, spec: EvaluatorSpec) -> Iterator[Problem]:
    path = f"evaluate.{name}.lm_eval"
    try:
        trial = _tried(context, name, spec)
    except UserError as error:
        yield Problem(path, spec.lm_eval, f"tasks whose files can be read; {error}")
        return
    if trial is None:
        return
    if trial.untried:
        say_once(f"{path}: not all is checked before the run: {trial.untried}")
    if trial.error and _runs_here(context):
        yield Problem(path, spec.lm_eval, f"tasks that lm-eval can run; {trial.error}")
    elif trial.error:
        say_once(f"{path}: not usable on this machine: {trial.error}")


def _evaluators(context: RunContext) -> dict[str, EvaluatorSpec]:
    spec: EvaluateSpec | None = context.specs.get("evaluate")
    return {name: one for name, one in spec.evaluators().items() if one.lm_eval and not one.problems()} if spec else {}


def _runs_here(context: RunContext) -> bool:
    return not (context.specs["evaluate"].placement or runs_on_a_cluster())


def _tried(context: RunContext, name: str, spec: EvaluatorSpec) -> Tried | None:
    """The trial of an evaluator's tasks; None if lm-eval is not installed. Raises UserError."""
    if this_pod() is not None:  # checked before the run was submitted
        return None
    if importlib.util.find_spec("lm_eval") is None:
        spec.pinned()
        return None
    return tried(name, spec, _model(context) if spec.chat_template else None)


def _model(context: RunContext) -> Path | None:
    """The folder of the model that the run starts from, if it is on this machine."""
    start = context.specs.get("start_from")
    return None if start is None or is_bucket(start.model) or start.missing() else start.folder()
