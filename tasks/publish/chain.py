"""The published model's ancestors among the stage's inputs."""

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
    """The inputs, parents before children. Only manifests are read: an ancestor's weights need not be verified to
    describe it. Raises ArtifactError."""
    names = ["model", *job.names("models"), *job.names("parts")]
    manifests = {name: _manifest(job, name) for name in names}
    links = [
        Link(str(manifest.facts.get("label", name.removeprefix("parts."))), manifest)
        for name, manifest in manifests.items()
    ]
    digests = {link.manifest.digest for link in links}
    placed: list[Link] = []
    while links:
        done = {link.manifest.digest for link in placed}
        ready = [link for link in links if not (set(link.manifest.parents.values()) & digests) - done]
        placed += ready or links  # equal contents could form a cycle
        links = [link for link in links if link not in placed]
    return placed


def reports(job: Job) -> list[Manifest]:
    """The evaluations, in input order. Raises ArtifactError."""
    return [_manifest(job, name) for name in job.names("reports")]


def label_of(job: Job, name: str) -> str:
    """The label of a model among the inputs. Raises ArtifactError."""
    return str(_manifest(job, name).facts["label"])


def shown_spec(manifest: Manifest) -> dict[str, Any]:
    """The spec as it can be published: without secrets, and local paths cut to their last name."""
    return dict(_without_paths(redact(manifest.spec)))


def _manifest(job: Job, name: str) -> Manifest:
    entry = job.inputs[name]
    manifest = read_manifest(Path(entry["path"]))
    if manifest.digest != entry["digest"]:
        raise ArtifactError(f"{name} in {entry['path']}: digest {entry['digest'][:12]} was expected")
    return manifest


def _without_paths(value: Any) -> Any:
    if isinstance(value, dict):
        # `state` is what Baton found in a folder, for its own cache
        return {name: _without_paths(item) for name, item in value.items() if item is not None and name != "state"}
    if isinstance(value, list):
        return [_without_paths(item) for item in value]
    if isinstance(value, str) and value.startswith(("/", "~")):
        return f"…/{PurePath(value).name}"
    return value
