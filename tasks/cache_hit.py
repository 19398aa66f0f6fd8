"""Artifacts that Flyte's local cache returns: each is checked, since it counts only while its files are intact, and
recorded in the execution that uses it."""

from pathlib import Path
from typing import Any

from baton.infra.progress import say
from baton.infra.storage.buckets import is_bucket
from baton.infra.tracking.record import note_cached
from baton.tasks.artifacts import Artifact, shown
from baton.tasks.core.manifest import MANIFEST, ArtifactError, Manifest, read_manifest, verify
from baton.tasks.core.removed import was_removed
from baton.tasks.core.stored import check_sizes
from baton.tasks.stage_job import produced

# digests of artifacts from jobs on other machines that this execution started
received: set[str] = set()


def check(artifact: Artifact) -> None:
    """Check an artifact's files, unless they are gone or this process has made it. Raises ArtifactError."""
    if artifact.digest in produced:
        return
    if is_missing(artifact.place):
        return
    if is_bucket(artifact.place):  # the stage that reads its files checks them
        manifest = check_sizes(artifact.place, artifact.digest)
    else:
        manifest = verify(Path(artifact.place), artifact.digest)
    if artifact.identity and manifest.identity != artifact.identity:
        raise ArtifactError(f"{artifact.kind} {artifact.digest[:12]} in {artifact.place}: its facts were changed")


def is_missing(place: str) -> bool:
    """Return whether a folder, its manifest, or some of its files were removed; in a bucket, by `baton gc` alone, since
    a file that was lost there is damage."""
    if is_bucket(place):
        return was_removed(place)
    try:
        return any(not (Path(place) / name).exists() for name in read_manifest(Path(place)).files)
    except ArtifactError:
        return not (Path(place) / MANIFEST).exists()


def present(value: Any) -> Any:
    """Return a list or a mapping of artifacts without those whose files are gone."""
    if isinstance(value, dict):
        return {name: item for name, item in value.items() if _is_present(item)}
    return [item for item in value if _is_present(item)] if isinstance(value, list) else value


def _is_present(artifact: Artifact) -> bool:
    if not is_missing(artifact.place):
        return True
    what = f"{artifact.kind.replace('_', ' ')} {artifact.digest[:12]}"
    why = "`baton gc` removed them" if was_removed(artifact.place) else "what was made from it exists"
    say(f"the {what} is left out: its files are gone from {artifact.place}, and {why}")
    return False


def note(artifact: Artifact, title: str) -> None:
    """Record that a call has this artifact, unless the call has just made it."""
    if artifact.digest not in produced | received:
        _record(artifact, title)
        say(f"✓ {title:<14} cached{', its files are gone' if is_missing(artifact.place) else ''}")


def _record(artifact: Artifact, title: str) -> None:
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
