"""Choose the stages that are recomputed because their files are gone, although Flyte's local cache has their artifacts.

Such a stage is recomputed if a stage that runs reads its files, or if no other artifact was made from it, unless
`baton gc` has removed its files. Otherwise only the report leaves it out: a deleted checkpoint is not trained again if
the model made from it exists.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from baton.infra.paths import located
from baton.tasks.artifacts import Artifact
from baton.tasks.cache_hit import check, is_missing
from baton.tasks.core.manifest import ArtifactError
from baton.tasks.core.removed import was_removed
from baton.tasks.models.artifact import HFModel
from baton.tasks.stage_task import StageTask, split
from baton.workflows.dag.call import Call
from baton.workflows.dag.tasks import TASKS, arguments


def cached_artifacts(dag: Sequence[Call], outputs: Mapping[str, Any]) -> dict[str, Artifact]:
    """Return the artifacts in Flyte's local cache, by the titles of their calls. A call after one that has to run is
    not cached. `outputs`: the artifacts or Flyte's promises of earlier calls, by title."""
    promises, artifacts = {**outputs}, {}
    for call in dag:
        task: StageTask = TASKS[call.stage]
        if not call.titles() <= promises.keys() or (promise := task.cached(split(arguments(call, promises)))) is None:
            continue
        try:
            artifact = task.artifact(promise)
            if not is_missing(artifact.place) and artifact.manifest().digest != artifact.digest:
                continue
        except (ValidationError, ArtifactError):
            continue
        promises[call.title], artifacts[call.title] = promise, artifact
    return artifacts


def recomputed(dag: Sequence[Call], cached: Mapping[str, Artifact]) -> set[str]:
    """Return the titles of the calls that are recomputed. `cached`: see `cached_artifacts`."""
    chosen: set[str] = set()

    def runs(call: Call) -> bool:
        return call.title in chosen or call.title not in cached or _executes(call, cached[call.title])

    for call in reversed(dag):
        if call.title in cached and is_missing(place := cached[call.title].place):
            readers = [other for other in dag if place in _places(other, cached)]
            is_dispensable = was_removed(place) or any(_has_inputs_content(other) for other in readers)
            if any(map(runs, readers)) or not is_dispensable:
                chosen.add(call.title)
    return chosen


def _executes(call: Call, artifact: Artifact) -> bool:
    """Return whether a cached stage runs all the same: always, or because its files are damaged."""
    if TASKS[call.stage].task_config.returns_input:
        return True
    try:
        check(artifact)
    except ArtifactError:
        return True
    return False


def _places(call: Call, cached: Mapping[str, Artifact]) -> Iterator[str]:
    """Yield the folders of the cached artifacts whose files a stage reads, with the base of an adapter."""
    for title in call.titles(TASKS[call.stage].task_config.reports_on) & cached.keys():
        artifact = cached[title]
        yield artifact.place
        if isinstance(artifact, HFModel) and artifact.base:
            yield located(artifact.base.place)


def _has_inputs_content(call: Call) -> bool:
    """Return whether a call's artifact has content from its inputs."""
    (kind,) = TASKS[call.stage].python_interface.outputs.values()
    return bool(kind.relation.has_content)
