"""List a recipe's stages without running them: in order, with the cached artifacts.

Each call is looked up in Flyte's local cache under the key that the run would use, so this module does not depend on
which stages exist.
"""

from dataclasses import dataclass, replace
from typing import Any

from pydantic import ValidationError

from tasks.artifacts import Artifact
from tasks.cache_hit import is_gone
from tasks.core.manifest import ArtifactError
from tasks.core.spec import StageSpec
from tasks.stage_task import StageTask, split
from workflows.dag.call import Call, Calls
from workflows.dag.calls import calls
from workflows.dag.walk import TASKS, arguments
from workflows.recipe import Recipe


@dataclass(frozen=True)
class PlannedStage:
    """One stage of the run."""

    name: str  # the call's title
    stage: str  # the stage of the engine
    after: tuple[str, ...]
    spec: StageSpec
    cached: str | None  # the cached artifact's digest
    facts: dict[str, Any]  # the cached artifact's facts


def steps_of(recipe: Recipe) -> list[PlannedStage]:
    """Every stage of the recipe, in topological order."""
    dag = calls(recipe.pinned())
    outputs: dict[str, Any] = {}  # promises of cached stages
    steps: dict[str, PlannedStage] = {}  # both are by title
    gone: list[Call] = []  # calls that are cached, but without their files
    for call in dag:
        before = call.titles() | {*call.after}
        after = tuple(title for title in steps if title in before)
        cached = _cached(call, outputs)
        facts = cached.facts() if cached else {}
        stage = TASKS[call.stage].task_config.engine.stage
        steps[call.title] = PlannedStage(call.title, stage, after, call.spec, cached.digest if cached else None, facts)
        gone += [call] if cached and is_gone(cached.place) else []
    for call in reversed(gone):
        if _is_made_again(call, dag, steps):
            steps[call.title] = replace(steps[call.title], cached=None)
    return list(steps.values())


def _is_made_again(call: Call, dag: Calls, steps: dict[str, PlannedStage]) -> bool:
    """Return whether the run recomputes a cached artifact whose files are gone (tasks/core/lacking.py): a stage that
    runs reads it, or nothing was made from it."""
    readers = [other for other in dag if call.title in other.titles(TASKS[other.stage].task_config.describes)]
    if any(not steps[other.title].cached for other in readers):
        return True
    return not any(_kind(other).relation.has_content for other in readers)


def _kind(call: Call) -> type[Artifact]:
    """The kind of artifact that a call makes."""
    (output,) = TASKS[call.stage].python_interface.outputs.values()
    kind: type[Artifact] = output
    return kind


def _cached(call: Call, outputs: dict[str, Any]) -> Artifact | None:
    """The call's cached artifact; None if the call or one before it has to run. The run itself verifies the files."""
    task: StageTask = TASKS[call.stage]
    if not call.titles() <= outputs.keys() or (promise := task.cached(split(arguments(call, outputs)))) is None:
        return None
    try:
        artifact = task.artifact(promise)
        if not is_gone(artifact.place) and artifact.manifest().digest != artifact.digest:
            return None
    except (ValidationError, ArtifactError):
        return None
    outputs[call.title] = promise
    return artifact
