"""The chain that led to the published model, as far as the stage was given it."""

from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

from infra.tracking.redact import redact
from tasks.job import Job
from tasks.manifest import ArtifactError, Manifest, read_manifest


@dataclass(frozen=True)
class Link:
    """One artifact of the chain and what made it."""

    title: str  # corpus, pretrain, base, sft, …
    manifest: Manifest


def chain(job: Job) -> list[Link]:
    """The artifacts that were given, parents before children. Their files are not read, only their
    manifests: the weights of an ancestor need not be checked to tell about it. Raises ArtifactError."""
    links = [Link(_title(name, manifest), manifest) for name, manifest in _manifests(job) if not _is_report(name)]
    digests = {link.manifest.digest for link in links}
    placed: list[Link] = []
    while links:
        done = {link.manifest.digest for link in placed}
        ready = [link for link in links if not (set(link.manifest.parents.values()) & digests) - done]
        placed += ready or links  # equal contents could close a circle
        links = [link for link in links if link not in placed]
    return placed


def reports(job: Job) -> list[Manifest]:
    """The evaluations, in the order in which they were given. Raises ArtifactError."""
    return [manifest for name, manifest in _manifests(job) if _is_report(name)]


def shown_spec(manifest: Manifest) -> dict[str, Any]:
    """The spec as it may be shown to others: without secrets, and of local paths only the last name."""
    return dict(_without_paths(redact(manifest.spec)))


def _manifests(job: Job) -> list[tuple[str, Manifest]]:
    found = []
    for name, entry in job.inputs.items():
        manifest = read_manifest(Path(entry["path"]))
        if manifest.digest != entry["digest"]:
            raise ArtifactError(f"{name} in {entry['path']}: digest {entry['digest'][:12]} was expected")
        found.append((name, manifest))
    return found


def _is_report(name: str) -> bool:
    return name.startswith("eval_")


def _title(name: str, manifest: Manifest) -> str:
    return str(manifest.facts.get("label", {"checkpoint": "pretrain"}.get(name, name)))


def _without_paths(value: Any) -> Any:
    if isinstance(value, dict):
        # `state` is what Baton found in a folder, for its own cache
        return {name: _without_paths(item) for name, item in value.items() if item is not None and name != "state"}
    if isinstance(value, list):
        return [_without_paths(item) for item in value]
    if isinstance(value, str) and value.startswith(("/", "~")):
        return f"…/{PurePath(value).name}"
    return value
