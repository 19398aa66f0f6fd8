"""List a DAG's stages without running them: in order, with the cached artifacts.

Each call is looked up in Flyte's local cache under the key that the run would use, so this module does not depend on
which stages exist.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from baton.tasks.artifacts import Artifact
from baton.tasks.core.spec import StageSpec
from baton.workflows.dag.call import Calls
from baton.workflows.dag.recompute import cached_artifacts, recomputed
from baton.workflows.dag.tasks import TASKS


@dataclass(frozen=True)
class PlannedStage:
    """One stage of the run."""

    name: str  # the call's title
    stage: str  # the stage of the engine
    after: tuple[str, ...]
    spec: StageSpec
    artifact: Artifact | None  # the cached one
    is_recomputed: bool = False  # since its files are gone and needed
    inputs: frozenset[str] = frozenset()  # titles of the calls whose artifacts it gets
    is_cacheable: bool = True

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
    outputs = {**(given or {})}
    for part in parts:
        cached = cached_artifacts(part, outputs)
        to_recompute = recomputed(part, cached)
        for call in part:
            before = call.titles() | {*call.after}
            after = tuple(title for title in steps if title in before)
            stage, artifact = TASKS[call.stage].task_config.engine.stage, cached.get(call.title)
            is_recomputed = call.title in to_recompute
            inputs, is_cacheable = frozenset(call.titles()), bool(TASKS[call.stage].metadata.cache)
            step = PlannedStage(call.title, stage, after, call.spec, artifact, is_recomputed, inputs, is_cacheable)
            steps.setdefault(call.title, step)
        # Flyte hands artifacts to a part, and promises to the calls in it: the cache keys differ
        outputs |= cached
    return list(steps.values())
