"""The versions of a registered model, their aliases and their files.

`champion` is the version to serve, `previous` the one before it (tasks/publish/champion.py moves them). Their history
is only in the registry: the tag `baton.champion` of each version has the periods in which it was champion.
"""

import fcntl
import json
import os
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from mlflow import MlflowClient
from mlflow.artifacts import download_artifacts
from mlflow.entities.model_registry import ModelVersion, RegisteredModel
from mlflow.exceptions import MlflowException

from infra.paths import baton_home, located
from infra.storage.durable import rename
from infra.tracking.store import tracking_uri
from tasks.manifest import MANIFEST, ArtifactError, read_manifest, remove, verify, write_manifest
from tasks.publish.registry import DIGEST_TAG, PATIENCE_S, ask

CHAMPION, PREVIOUS = "champion", "previous"
MODEL_TAG = "baton.model"
TERMS_TAG = "baton.champion"  # [{"since", "until", "why"}, …], oldest first
ROLLED_BACK_TAG = "baton.rolled_back"  # when; the same for all versions that one rollback set aside
DECISION_TAG = "baton.decision"  # the decision's digest, written before the alias moves
OUTCOME_TAG = "baton.outcome"  # promoted, kept or rejected; a version without it is not (yet) a generation

_used: dict[Path, int] = {}  # fetched folders that this process uses: open, with a shared lock


@dataclass(frozen=True)
class Version:
    """One version of a registered model."""

    name: str
    version: int
    digest: str  # of the HFModel
    content: str  # digest of the published files: those of the HFModel and the card
    source: str
    tags: dict[str, str]


def version_at(name: str, alias: str, patience_s: float = PATIENCE_S) -> Version | None:
    """The version that has the alias; None if the model or the alias does not exist. Raises StageError
    if the registry does not answer for `patience_s`."""
    return ask(lambda client: _at(client, find_model(client, name), alias), patience_s=patience_s)


def compared_champion(name: str, patience_s: float = PATIENCE_S) -> Version | None:
    """The champion that a candidate is compared with: not one whose promotion was interrupted before its outcome, but
    the one before it. Raises StageError."""
    champion = version_at(name, CHAMPION, patience_s)
    interrupted = champion and DECISION_TAG in champion.tags and OUTCOME_TAG not in champion.tags
    return version_at(name, PREVIOUS, patience_s) if interrupted else champion


def is_registered(name: str, patience_s: float = PATIENCE_S) -> bool:
    """Whether there is a registered model of this name. Raises StageError."""
    return ask(lambda client: find_model(client, name) is not None, patience_s=patience_s)


def versions(name: str, patience_s: float = PATIENCE_S) -> list[Version]:
    """Every version, oldest first. Raises StageError."""
    return ask(lambda client: all_versions(client, name), patience_s=patience_s)


def terms(version: Version) -> list[dict[str, Any]]:
    """The periods in which it was champion: {"since", "until", "why"}, UTC, oldest first; `until` is None for the
    current one."""
    return list(json.loads(version.tags.get(TERMS_TAG, "[]")))


def is_open(version: Version) -> bool:
    """Whether its last term as champion has no end."""
    past = terms(version)
    return bool(past) and past[-1]["until"] is None


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
    partial = place.with_name(f"{place.name}.{os.getpid()}.partial")
    try:
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
        if not place.exists():  # another process may have been faster
            rename(partial, place)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return place if _use(place) else fetch(version)


def remove_fetched(name: str, but: set[str]) -> list[str]:
    """Remove the fetched versions of a registered model, except the contents in `but` and those that another process
    uses. Returns the digests of their models."""
    removed = []
    for path in (baton_home() / "models").glob(f"*/{MANIFEST}"):
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


def find_model(client: MlflowClient, name: str) -> RegisteredModel | None:
    try:
        return client.get_registered_model(name)
    except MlflowException as error:
        if error.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise
        return None


def number_at(model: RegisteredModel | None, alias: str) -> int | None:
    return int(model.aliases[alias]) if model and alias in model.aliases else None


def _at(client: MlflowClient, model: RegisteredModel | None, alias: str) -> Version | None:
    number = number_at(model, alias)
    return None if model is None or number is None else as_version(client.get_model_version(model.name, str(number)))


def all_versions(client: MlflowClient, name: str) -> list[Version]:
    model_versions: list[ModelVersion] = []
    token: str | None = ""
    while token is not None:
        page = client.search_model_versions(f"name = '{name}'", page_token=token or None)
        model_versions += page
        token = page.token or None
    return sorted(map(as_version, model_versions), key=lambda version: version.version)


def as_version(version: ModelVersion) -> Version:
    tags = dict(version.tags)
    return Version(
        name=str(version.name),
        version=int(version.version),
        digest=tags.get(MODEL_TAG, ""),
        content=tags.get(DIGEST_TAG, ""),
        source=str(version.source),
        tags=tags,
    )
