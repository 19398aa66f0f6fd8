"""A stage as a Flyte task: the fields that bear its identity are a separate input, and a cache hit counts only
while its files are intact."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from infra.flyte.cached_task import CachedTask, hashes, register
from infra.placement.config import Placement
from infra.pod_spec import PodSpec
from infra.process.launch import Engine
from infra.progress import say
from infra.storage.buckets import is_bucket, storage_of
from infra.tracking.record import note_cached
from tasks.artifacts import Artifact, shown
from tasks.core import lacking
from tasks.core.called import read_how
from tasks.core.manifest import MANIFEST, ArtifactError, Manifest, digest_in, read_manifest, verify
from tasks.core.spec import Spec, StageSpec
from tasks.core.stored import check_sizes, send
from tasks.models.artifact import HFModel
from tasks.run import produced, restored

_received: set[str] = set()


@dataclass(frozen=True)
class Stage:
    """Marks a Flyte task as a stage (its `task_config`)."""

    engine: Engine
    pod: PodSpec  # its pod's resources unless the recipe has them
    hands_on: bool = False
    describes: tuple[str, ...] = ()


class StageTask(CachedTask[Stage]):
    """A stage's Flyte task. A local cache hit counts only while its files are intact, and is recorded in the execution
    that it serves."""

    def split(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """`spec` keeps the fields of its identity, `how` gets the others, with the call."""
        spec, (call, rest) = inputs["spec"], read_how(inputs.get("how") or "{}")
        if isinstance(spec, Spec):
            spec, rest = spec.with_options(rest).split_options()
        return inputs | {"spec": spec, "how": call.how(rest)}

    def sent(self, placement: Placement, inputs: dict[str, Any]) -> dict[str, Any]:
        storage = storage_of(placement.storage)
        return {name: _sent(value, storage) for name, value in inputs.items()}

    def received(self, outputs: Any) -> None:
        (literal,) = outputs.literals.values()
        _received.add(self.value(literal).digest)

    def output(self, inputs: dict[str, Any], compute: Callable[[], Any], recompute: Callable[[], Any]) -> Any:
        if self.task_config.hands_on:
            return recompute()
        promise = compute()
        stage = self.task_config.engine.stage
        call, _ = read_how(inputs.get("how") or "{}")
        try:
            with lacking.tolerated():
                artifact: Artifact = self.value(promise.val)
            if artifact.digest not in produced:
                _check(artifact)
        except (ArtifactError, ValidationError) as error:  # the latter: another version of Baton made it
            say(f"{stage} is cached, but its files were changed or removed. {error}\nMaking it again.")
            return recompute()
        gone = artifact.digest not in produced and is_gone(artifact.place)
        lacking.note_made(artifact.digest, _made_from(artifact, inputs), exists=not gone)
        if artifact.digest not in produced | _received:
            title = call.title or artifact.title(stage)
            self._note(title, artifact)
            say(f"✓ {title:<14} cached{', its files are gone' if gone else ''}")
        if gone:
            lacking.note(artifact.place, recompute)
        return promise

    def _note(self, title: str, artifact: Artifact) -> None:
        """Record an artifact from the cache, with its spec and inputs if its manifest exists."""
        try:
            manifest = artifact.manifest()
        except ArtifactError:
            manifest = Manifest(artifact.kind, artifact.digest, {}, {})
        folder = Path(artifact.place)
        note_cached(
            title,
            artifact.kind,
            artifact.digest,
            artifact.facts(),
            shown=shown(artifact.kind, artifact.facts()),
            spec=manifest.spec,
            inputs=manifest.parents,
            job_dir=folder.parent if folder.is_absolute() and folder.name == "output" else None,  # else in a bucket
        )


def _check(artifact: Artifact) -> None:
    """Check an artifact's files, unless they are gone. Raises ArtifactError."""
    if is_bucket(artifact.place):  # the stage that reads its files checks them
        manifest = check_sizes(artifact.place, artifact.digest)
    elif is_gone(artifact.place):
        return
    else:
        manifest = verify(Path(artifact.place), artifact.digest)
    if artifact.identity and manifest.identity != artifact.identity:
        raise ArtifactError(f"{artifact.kind} {artifact.digest[:12]} in {artifact.place}: its facts were changed")


def is_gone(place: str) -> bool:
    """Whether a folder, its manifest, or some of its files were removed."""
    if is_bucket(place):
        return False
    try:
        return any(not (Path(place) / name).exists() for name in read_manifest(Path(place)).files)
    except ArtifactError:
        return not (Path(place) / MANIFEST).exists()


def _made_from(artifact: Artifact, inputs: dict[str, Any]) -> list[str]:
    """The digests of the inputs, Flyte's promises or artifacts, that an artifact was made from."""
    digests = {name: [*_digests(value)] for name, value in inputs.items()}
    one_each = {name: of[0] for name, of in digests.items() if of}
    if not artifact.relation.has_content:
        return []
    return [digest for name in artifact.relation.sources(artifact.digest, one_each) for digest in digests[name]]


def _digests(value: Any) -> Iterator[str]:
    if isinstance(value, Artifact):
        yield value.digest
    elif isinstance(value, list | dict):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _digests(item)
    else:
        yield from map(digest_in, hashes(value))


def _sent(value: Any, storage: str) -> Any:
    """Artifacts and a spec's files as they are in storage, uploaded first if necessary."""
    if isinstance(value, Artifact):
        value = restored(value)
    if isinstance(value, HFModel) and value.base:
        value = value.with_base_at(send(value.base.place, storage))
    if isinstance(value, Artifact):
        return value.at(send(value.place, storage))
    if isinstance(value, StageSpec):
        return value.sent(storage)
    if isinstance(value, dict):
        return {name: _sent(item, storage) for name, item in value.items()}
    return [_sent(item, storage) for item in value] if isinstance(value, list) else value


register(Stage, StageTask)
