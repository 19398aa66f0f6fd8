"""Find a model of the home folder as a person names it: by its folder, its name, or the first letters of its digest."""

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from baton.infra.options import Folder
from baton.infra.paths import FOLDERS, home_path
from baton.tasks.core.job import StageError
from baton.tasks.core.manifest import MANIFEST, ArtifactError, Manifest, read_manifest

KINDS = ("published_model", "hf_model")  # of equal models the published one is preferred
DIGEST = re.compile(r"[0-9a-f]{6,64}")
LISTED = 20  # names in a message


@dataclass(frozen=True)
class FoundModel:
    directory: Path
    manifest: Manifest

    @property
    def name(self) -> str:
        """The name under which it is published, or its label."""
        return str(self.manifest.facts.get("registry_name") or self.manifest.facts.get("label", ""))

    @property
    def digest(self) -> str:
        """The digest of the HFModel."""
        return self.manifest.parents.get("model", "") or self.manifest.digest

    def digests(self) -> set[str]:
        return {self.manifest.digest, self.digest}

    def rank(self) -> tuple[bool, int, float]:
        """Order models of one name: published ones by version, others by time."""
        version = str(self.manifest.facts.get("registry_version", ""))
        published = self.manifest.kind == KINDS[0]
        return published, int(version) if version.isdecimal() else 0, (self.directory / MANIFEST).stat().st_mtime


def find_model(named: str) -> Path:
    """Return the folder of the model that is named: a folder with a manifest, or in the home folder the model that was
    published last under a name (tasks/models/named.py), else the newest of a name, or the one of a digest, of which the
    first 6 letters suffice. Raises StageError."""
    folder = Path(named)
    for place in (folder, folder / "output"):
        if (place / MANIFEST).is_file():
            return place
    if named in model_names():
        return home_path() / "models" / named
    models = list(_models())
    if of_name := [model for model in models if model.name == named]:
        return max(of_name, key=FoundModel.rank).directory
    if DIGEST.fullmatch(named):
        of_digest = [model for model in models if any(digest.startswith(named) for digest in model.digests())]
        if len(digests := {model.digest for model in of_digest}) > 1:
            raise StageError(f"{named}: {len(digests)} models have digests that begin so: {', '.join(sorted(digests))}")
        if of_digest:
            return max(of_digest, key=FoundModel.rank).directory
    if folder.is_dir():
        raise StageError(
            f"{named}: a folder without {MANIFEST}, so no model of a run. Load a folder of Transformers' files with "
            "`start_from` in a recipe, which also checks it"
        )
    names = sorted({*model_names(), *(model.name for model in models if model.name)})
    known = ", ".join(names[:LISTED]) + (" …" if names[LISTED:] else "") if names else "no model"
    raise StageError(f"{named}: neither a folder nor a model in {home_path()}, which has {known}")


def model_names() -> list[str]:
    """Return the names of the models that have a link."""
    folder = home_path() / "models"
    return sorted(path.name for path in folder.iterdir() if path.is_symlink()) if folder.is_dir() else []


class ModelFolder(Folder):
    """The folder of a model: its path, or what `find_model` finds. A link is followed once, so that a service keeps the
    model with which it started."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        if not Path(value).exists():
            try:
                value = find_model(str(value))
            except StageError as error:
                self.fail(str(error), param, ctx)
        return super().convert(value, param, ctx).resolve()


def home_artifacts() -> Iterator[tuple[Path, Manifest]]:
    """Yield the artifacts in the home folder that are not damaged, each once."""
    folders = [path for name in FOLDERS for path in (home_path() / name).glob("*")]
    for place in {path.resolve() for folder in folders for path in (folder, folder / "output")}:
        if place.suffix == ".partial" or not (place / MANIFEST).is_file():
            continue
        with suppress(ArtifactError):
            yield place, read_manifest(place)


def _models() -> Iterator[FoundModel]:
    return (FoundModel(*each) for each in home_artifacts() if each[1].kind in KINDS)
