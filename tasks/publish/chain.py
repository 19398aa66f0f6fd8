"""The published model's ancestors among the stage's inputs."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import Any

from baton.infra.tracking.redact import redact
from baton.tasks.artifacts import kind_of
from baton.tasks.core.job import Job
from baton.tasks.core.manifest import ArtifactError, Manifest, read_manifest, text_digest

# an absolute path within a text: not a part of a URL, a tag or a relative path
_PATH = re.compile(r"(?:file://|(?<![\w.:/\\<…]))(?:~[\w.-]*/|/)(?=[\w.~@+-])[^\s'\"`<>|:;,*?()\[\]{}]*")


COMPARED = ("known", "newest")  # inputs that are corpora of other nights


@dataclass(frozen=True)
class Link:
    """One artifact of the chain and the stage that made it."""

    title: str  # corpus, pretrain, base, chat, …
    manifest: Manifest

    @property
    def parents(self) -> Mapping[str, str]:
        """The digests of the artifact's sources, by the names of its stage's inputs. The earlier corpora with which an
        increment was compared are left out: after 1,000 nights they would be half a million names."""
        made_from = kind_of(self.manifest.kind).relation.sources(self.manifest.digest, self.manifest.parents)
        return {name: digest for name, digest in made_from.items() if name.partition(".")[0] not in COMPARED}


def chain(job: Job) -> list[Link]:
    """Return the published model and its ancestors among the inputs, parents before children, without stages that left
    a model unchanged. Only manifests are read, since the description of an ancestor does not need its weights verified.
    Raises ArtifactError."""
    names = [name for name in job.inputs if not name.startswith("reports.")]
    links: dict[str, Link] = {}
    for name in names:
        manifest = manifest_of(job, name)
        title = str(manifest.facts.get("label", name.removeprefix("parts.")))
        known = links.get(manifest.digest)
        if known is None or known.manifest.digest in known.manifest.parents.values():
            links[manifest.digest] = Link(title, manifest)
    placed: dict[str, Link] = {}
    waiting = [(job.inputs["model"]["digest"], False)]
    while waiting:
        digest, parents_placed = waiting.pop()
        if parents_placed:
            placed.setdefault(digest, links[digest])
        elif digest in links and digest not in placed:
            waiting.append((digest, True))
            waiting += [
                (parent, False) for parent in reversed([*links[digest].parents.values()]) if parent not in placed
            ]
    return list(placed.values())


def reports(job: Job) -> list[Manifest]:
    """Return the evaluation of each model, with its label. Models with the same files share an evaluation, which has
    the label of the model that was evaluated first. Raises ArtifactError."""
    labels: dict[str, list[str]] = {}
    for name in (*job.names("models"), "model"):
        labels.setdefault(job.inputs[name]["digest"], []).append(label_of(job, name))
    found = {
        report.facts["model_digest"]: report for report in (manifest_of(job, name) for name in job.names("reports"))
    }
    return [
        replace(report, facts=report.facts | {"label": label})
        for digest, report in found.items()
        for label in labels.get(digest, [report.facts["label"]])
    ]


def label_of(job: Job, name: str) -> str:
    """Return the label of a model among the inputs. Raises ArtifactError."""
    return str(manifest_of(job, name).facts["label"])


def shown_spec(manifest: Manifest) -> dict[str, Any]:
    """Return the spec in a form that can be published: without secrets, with local paths shortened to their last name,
    and with the digests of functions' files in place of their source."""
    return dict(_shown(redact(manifest.spec)))


def manifest_of(job: Job, name: str) -> Manifest:
    """Return an input's manifest. Raises ArtifactError."""
    entry = job.inputs[name]
    manifest = read_manifest(Path(entry["path"]))
    if manifest.digest != entry["digest"]:
        raise ArtifactError(f"{name} in {entry['path']}: digest {entry['digest'][:12]} was expected")
    return manifest


def _shown(value: Any, name: str = "") -> Any:
    if isinstance(value, dict):
        if name == "source" and all(str(file).endswith(".py") for file in value):
            return {_without_paths(file): f"blake3 {text_digest(text)[:12]}" for file, text in value.items()}
        # `state` is the recorded state of a folder, for Baton's cache
        shown = {key: item for key, item in value.items() if item is not None and key != "state"}
        return {_without_paths(str(key)): _shown(item, str(key)) for key, item in shown.items()}
    if isinstance(value, list):
        return [_shown(item) for item in value]
    return _without_paths(value) if isinstance(value, str) else value


def _without_paths(text: str) -> str:
    if text.startswith(("/", "~")) and "\n" not in text:
        return f"…/{PurePath(text).name}"
    return _PATH.sub(lambda match: f"…/{PurePath(match[0]).name}", text)
