"""List a DAG's stages without running them: in order, with the cached artifacts.

Each call is looked up in Flyte's local cache under the key that the run would use, so this module does not depend on
which stages exist.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import ValidationError

from tasks.artifacts import Artifact
from tasks.cache_hit import is_gone
from tasks.core.manifest import ArtifactError
from tasks.core.spec import StageSpec
from tasks.stage_task import StageTask, split
from workflows.dag.call import Call, Calls
from workflows.dag.walk import TASKS, arguments


@dataclass(frozen=True)
class PlannedStage:
    """One stage of the run."""

    name: str  # the call's title
    stage: str  # the stage of the engine
    after: tuple[str, ...]
    spec: StageSpec
    artifact: Artifact | None  # the cached one
    is_recomputed: bool = False  # since its files are gone and needed

    @property
    def cached(self) -> str | None:
        """The digest of the artifact that the run finds."""
        return self.artifact.digest if self.artifact and not self.is_recomputed else None

    @property
    def facts(self) -> dict[str, Any]:
        """The cached artifact's facts."""
        return self.artifact.facts() if self.artifact else {}


def steps_of(parts: Sequence[Calls], given: Mapping[str, Artifact] | None = None) -> list[PlannedStage]:
    """Every call of a DAG with pinned specs, in topological order. Its parts are the lists that are run one after the
    other (workflows/dag/dynamic_part.py); most DAGs have one. `given`: the artifacts that exist before."""
    steps: dict[str, PlannedStage] = {}  # by title
    gone: list[Call] = []  # calls that are cached, but without their files
    for part in parts:
        # Flyte hands artifacts to a part, and promises to the calls in it: the cache keys differ
        cached = {title: step.artifact for title, step in steps.items() if step.artifact}
        outputs: dict[str, Any] = {**(given or {}), **cached}
        for call in part:
            before = call.titles() | {*call.after}
            after = tuple(title for title in steps if title in before)
            artifact = _cached(call, outputs)
            if call.title not in steps:
                stage = TASKS[call.stage].task_config.engine.stage
                steps[call.title] = PlannedStage(call.title, stage, after, call.spec, artifact)
                gone += [call] if artifact and is_gone(artifact.place) else []
    dag = [call for part in parts for call in part]
    for call in reversed(gone):
        if _is_made_again(call, dag, steps):
            steps[call.title] = replace(steps[call.title], is_recomputed=True)
    return list(steps.values())


def _is_made_again(call: Call, dag: list[Call], steps: dict[str, PlannedStage]) -> bool:
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
