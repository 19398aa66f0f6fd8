"""A model for somebody else, in a folder or on the hub: the files as they are published, with the card."""

import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

from baton.infra.paths import baton_home
from baton.infra.storage.hub import Consent, Pushed, Repository
from baton.tasks.core.job import Job
from baton.tasks.core.manifest import MANIFEST, ArtifactError, Manifest, content_digest, file_digest, read_manifest
from baton.tasks.models.adapter_base import ADAPTER_CONFIG, ModelFolders, open_model
from baton.tasks.models.find import home_artifacts
from baton.tasks.publish.card import model_card
from baton.tasks.publish.chain import chain, reports
from baton.tasks.publish.copy import CARD, copy_files, copy_model
from baton.tasks.publish.on_hub import push_model
from baton.tasks.publish.spec import PublishSpec

HERE = 'path = "."  # this directory'  # in the card
WEIGHTS = "*.safetensors"


def fill(source: Path, folder: Path, base: Path | None = None, linked: bool = False) -> None:
    """Fill an empty folder with the model in `source`. Its files are verified before and after; an adapter gets its
    base, and a model that was never published a card from the artifacts in the home folder. `linked`: large files may
    be hard links. Raises ArtifactError."""
    model = open_model(source, base)
    manifest = read_manifest(source)
    if manifest.kind == "published_model":
        copy_files(source, folder, linked)
        shutil.copyfile(source / CARD, folder / CARD)
        if content_digest(folder) != manifest.digest:
            raise ArtifactError(f"{folder}: after the copy, its files are not those of {manifest.digest[:12]}")
        return
    copy_model(model, folder, linked)
    known = {entry.blake3 for each in {source, model.weights} for entry in read_manifest(each).files.values()}
    if wrong := [path.name for path in folder.rglob(WEIGHTS) if file_digest(path) not in known]:
        raise ArtifactError(f"{folder}: after the copy, {', '.join(wrong)} is not as in {source}")
    (folder / CARD).write_text(_card(model, source, manifest), encoding="utf-8")


def push(source: Path, repository: Repository, consent: Consent, base: Path | None = None) -> Pushed:
    """Push the model in `source` to a repository of the hub. Raises ArtifactError, StorageError."""
    with TemporaryDirectory(dir=baton_home(), prefix="export-", suffix=".partial") as place:
        folder = Path(place)
        fill(source, folder, base, linked=True)
        if not (folder / ADAPTER_CONFIG).exists():  # an adapter with its base is downloaded first
            text = (folder / CARD).read_text(encoding="utf-8")
            here = f'path = "{repository.name}"  # on the hub, or the path of this directory'
            (folder / CARD).write_text(text.replace(HERE, here), encoding="utf-8")
        facts = read_manifest(source).facts
        return push_model(folder, repository, consent, f"{facts.get('registry_name') or facts['label']}")


def _card(model: ModelFolders, source: Path, manifest: Manifest) -> str:
    """Return the card of a model that was not published, from its ancestors and evaluations in the home folder."""
    known = _artifacts()
    found: dict[str, Path] = {}
    waiting = [*manifest.parents.values()]
    while waiting:
        digest = waiting.pop()
        if digest in known and digest not in found:
            found[digest] = known[digest]
            waiting += read_manifest(known[digest]).parents.values()
    described = {digest: read_manifest(path) for digest, path in found.items()}
    models = [digest for digest, each in described.items() if each.kind == manifest.kind]
    inputs = {"model": (source, manifest.digest)}
    inputs |= {f"models.{number}": (found[digest], digest) for number, digest in enumerate(models)}
    for digest, each in described.items():
        if digest not in models:
            name = f"parts.{each.title or each.kind}"
            inputs[name if name not in inputs else f"{name}-{digest[:6]}"] = found[digest], digest
    for digest, path in known.items():
        each = read_manifest(path)
        if each.kind == "eval_report" and each.facts.get("model_digest") in (manifest.digest, *models):
            inputs[f"reports.{digest}"] = path, digest
    entries = {name: {"path": str(path), "digest": digest} for name, (path, digest) in inputs.items()}
    job = Job(source, "publish", "published_model", {}, entries)
    spec = PublishSpec(name=str(manifest.facts["label"]))
    return model_card(spec, model, manifest, chain(job), reports(job))


def _artifacts() -> dict[str, Path]:
    """Return the folders of the home's artifacts by their digests, of equal ones the newest. The card says nothing of a
    damaged one."""
    found = sorted(home_artifacts(), key=lambda each: (each[0] / MANIFEST).stat().st_mtime)
    return {manifest.digest: place for place, manifest in found}
