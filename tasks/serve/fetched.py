"""The files of registered versions on this machine, for a service that follows an alias.

HOME/models/<content>/    of a version on a server; without one, files are read where they were published
"""

import fcntl
import os
import shutil
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote, urlsplit

from mlflow.artifacts import download_artifacts

from baton.infra.paths import baton_home, located
from baton.infra.storage.durable import new_folder, remove, rename
from baton.infra.tracking.store import tracking_uri
from baton.tasks.core.manifest import MANIFEST, ArtifactError, read_manifest, verify, write_manifest
from baton.tasks.publish.aliases import Version
from baton.tasks.publish.registry import ask

_used: dict[Path, int] = {}  # fetched folders that this process uses: open, with a shared lock


def fetch(version: Version) -> Path:
    """The version's files on this machine, checked against their digest: where they were published, or
    (from a server) downloaded once into Baton's home, where no other process removes them while this one runs. Raises
    ArtifactError, StageError."""
    if version.source.startswith("file:"):
        place = Path(located(unquote(urlsplit(version.source).path)))
        verify(place, version.content)
        return place
    place = baton_home() / "models" / version.content
    if _use(place):
        verify(place, version.content)
        return place
    with new_folder(place) as partial:  # another process may be faster
        ask(lambda _: _download(version, partial))
        facts = {"label": version.tags.get("baton.label", version.name)}
        facts |= {"registry_name": version.name, "registry_version": str(version.version)}
        made = write_manifest(partial, "published_model", facts, parents={"model": version.digest})
        if (got := made.digest) != version.content:
            if not made.files:
                raise ArtifactError(
                    f"{version.name} version {version.version}: its files are gone from the server. Publish the model "
                    "again, which uploads them again, or roll back to another version"
                )
            raise ArtifactError(
                f"{version.name} version {version.version}: the registry's files have digest {got[:12]}, but were "
                f"registered with {version.content[:12]}: they were changed on the server. Publish the model again "
                "under another name, or roll back to another version"
            )
    return place if _use(place) else fetch(version)


def remove_fetched(name: str, but: set[str]) -> list[str]:
    """Remove the fetched versions of a registered model, except the contents in `but` and those that another process
    uses. Returns the digests of their models."""
    removed = []
    for path in (baton_home() / "models").glob(f"*/{MANIFEST}"):
        if path.parent.is_symlink():  # a published model's name (tasks/models/named.py)
            continue
        place, manifest = path.parent, read_manifest(path.parent)
        if place.name in but or place.suffix or manifest.facts.get("registry_name") != name:
            continue
        if place in _used:
            os.close(_used.pop(place))
        folder = os.open(place, os.O_RDONLY)
        with suppress(OSError):  # in use, or a file system without such locks
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            aside = place.with_name(f"{place.name}.{os.getpid()}.partial")
            rename(place, aside)
            remove(aside)
            removed.append(manifest.parents.get("model", ""))
        os.close(folder)
    return removed


def _use(place: Path) -> bool:
    """Keep a fetched folder from being removed until this process ends or removes it; False if there is none."""
    if place not in _used:
        try:
            folder = os.open(place, os.O_RDONLY)
        except FileNotFoundError:
            return False
        with suppress(OSError):  # a file system without such locks
            fcntl.flock(folder, fcntl.LOCK_SH)
        _used[place] = folder
    if place.exists() and os.path.samestat(place.stat(), os.fstat(_used[place])):
        return True
    os.close(_used.pop(place))
    return False


def _download(version: Version, place: Path) -> None:
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    download_artifacts(f"models:/{version.name}/{version.version}", dst_path=str(place), tracking_uri=tracking_uri())
