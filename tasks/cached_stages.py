"""Record the stages of an execution that Flyte served from its cache on a cluster: they had no pod that could.

If a pod of the execution made the artifact, its own record takes precedence (infra/tracking/push.py)."""

from collections.abc import Iterable

from baton.infra.flyte.options import Options
from baton.infra.tracking.record import note_cached
from baton.tasks.artifacts import Artifact, shown
from baton.tasks.core.manifest import ArtifactError, Manifest
from baton.tasks.core.stored import manifest_at


def note_used(artifacts: Iterable[Artifact]) -> None:
    """Record artifacts that the execution used."""
    _note({artifact.digest: artifact.manifest() for artifact in artifacts})


def note_upstream(artifacts: Iterable[Artifact], options: Options) -> None:
    """Record a pod's inputs and their ancestors in storage, if calls before it made them. What a night continues from
    was made by an earlier execution, whose calls have the same titles: `pretrain` is not before itself. Raises
    StorageError."""
    manifests: dict[str, Manifest] = {}
    waiting = [(artifact.digest, artifact.place, options.title) for artifact in artifacts]  # and the reader
    while waiting:
        digest, place, reader = waiting.pop()
        if digest in manifests:
            continue
        try:
            manifest = manifest_at(place)
        except ArtifactError:
            continue  # the stage that needs it says so
        if manifest.title in options.before(reader) and manifest.digest == digest:
            manifests[digest] = manifest
            folder = place.rpartition("/")[0]  # artifacts lie side by side, by their identities
            parents = {parent: manifest.identities.get(name, parent) for name, parent in manifest.parents.items()}
            waiting += [(parent, f"{folder}/{parents[parent]}", manifest.title) for parent in parents]
    _note(manifests)


def _note(manifests: dict[str, Manifest]) -> None:
    """Note each manifest after its parents."""
    noted: set[str] = set()

    def note(digest: str) -> None:
        manifest = manifests.get(digest)
        if manifest is None or digest in noted:
            return
        noted.add(digest)
        for parent in manifest.parents.values():
            note(parent)
        kind, facts = manifest.kind, manifest.facts
        note_cached(
            manifest.title, kind, digest, facts,
            spec=manifest.spec, inputs=manifest.parents, shown=shown(kind, facts), without_pod=True,
        )  # fmt: skip

    for digest in manifests:
        note(digest)
