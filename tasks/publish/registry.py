"""Versions in MLflow's model registry, one for each content.

A version has the artifact's digest as a tag: publishing the same files to the same registry again returns the same
version, and so does the same model whose card differs only in what it was compared with. The files are uploaded to a
server, which accepts no paths; an embedded store refers to the published directory.
"""

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar
from urllib.parse import unquote, urlsplit

from mlflow import MlflowClient
from mlflow.entities.model_registry import ModelVersion
from mlflow.exceptions import MlflowException
from requests.exceptions import RequestException
from sqlalchemy.exc import SQLAlchemyError

from baton.infra.tracking.redact import redact_text
from baton.infra.tracking.sqlite import make_tables, require_store
from baton.infra.tracking.sqlite_file import StoreMissing, damage, store_file
from baton.infra.tracking.store import (
    TrackingUnreachable,
    artifact_location,
    experiment_name,
    prepare_client,
    shown_uri,
    tracking_uri,
)
from baton.tasks.core.job import StageError
from baton.tasks.core.manifest import MANIFEST, RECORD
from baton.tasks.publish.copy import CARD

T = TypeVar("T")

PATIENCE_S = 120.0  # time for which a registry may be unreachable
PAUSE_S = 2.0
UPLOAD_TIMEOUT_S = 120  # per response: a server that stores a large file is slow

DIGEST_TAG = "baton.digest"
SAME_TAG = "baton.same"  # digest without the models with which the card compares this one
PART_TAG = "baton.part."  # + name: "<digest> <place>" of a source of the model; in the home the place is relative

# MLflow's error codes of transient errors
_TRANSIENT = ("INTERNAL_ERROR", "TEMPORARILY_UNAVAILABLE", "REQUEST_LIMIT_EXCEEDED", "RESOURCE_EXHAUSTED", "ABORTED")


class RegistryAway(StageError):
    """Raised if the model registry is unreachable for longer than the timeout. The outage may be temporary."""


@dataclass(frozen=True)
class Publication:
    """A version to register."""

    name: str
    alias: str | None
    directory: Path
    digest: str
    description: str
    tags: dict[str, str]
    same: str = ""  # digest of the part of the content that distinguishes versions, if that is not all of it


def register(publication: Publication, waiting: Callable[[float], None], patience_s: float = PATIENCE_S) -> str:
    """Create or find the version; returns its number. `waiting(seconds)` is called while the registry is unreachable.
    Raises StageError if it stays unreachable for `patience_s`, or refuses."""
    os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"] = str(UPLOAD_TIMEOUT_S)

    def attempt(client: MlflowClient) -> str:
        if version := _find(client, publication):
            _retag(client, publication, version)
            scheme, _, model_id = str(client.get_model_version(publication.name, version).source).partition(":/")
            if scheme == "models":
                _complete(client, publication, model_id)
        elif version := _equal(client, publication):
            _retag(client, publication, version)
        else:
            version = _create(client, publication)
        if publication.alias:
            client.set_registered_model_alias(publication.name, publication.alias, version)
        return version

    return ask(attempt, waiting, patience_s, prepare=make_tables)


def ask(
    attempt: Callable[[MlflowClient], T],
    waiting: Callable[[float], None] = lambda waited: None,
    patience_s: float = PATIENCE_S,
    prepare: Callable[[str], None] = require_store,
) -> T:
    """Call `attempt` with the registry's client until it succeeds; transient errors are retried, and
    `waiting(seconds)` is called. Raises StageError if the registry stays unreachable for `patience_s`, or refuses; with
    a patience of 0 the caller retries, or continues without the registry.
    Only `prepare` creates an SQLite store."""
    prepare_client()
    uri = tracking_uri()
    started = time.monotonic()
    while True:
        try:
            prepare(uri)
            return attempt(MlflowClient(uri))
        except StoreMissing as error:  # a restore or a remount may be in progress
            reason, transient = str(error), True
        except TrackingUnreachable as error:
            raise StageError(str(error)) from error
        except (MlflowException, SQLAlchemyError) as error:
            reason = str(error).partition("\n")[0]
            transient = not isinstance(error, MlflowException) or error.error_code in _TRANSIENT
            transient = transient and "out-of-date database schema" not in reason  # to be migrated by hand
            if (path := store_file(uri)) and (damaged := damage(path, reason)):
                raise StageError(str(damaged)) from error
        except RequestException as error:  # the connection broke during an upload
            reason, transient = str(error).partition("\n")[0], True
        waited = time.monotonic() - started
        if not transient:
            raise StageError(f"the model registry {shown_uri()} refuses: {redact_text(reason)[:500]}")
        if waited + PAUSE_S > patience_s:
            away = f"has not answered for {waited:.0f} s" if patience_s else "does not answer"
            fix = " Start it and run the same command again to continue from here." if patience_s else ""
            raise RegistryAway(f"the model registry {shown_uri()} {away} ({redact_text(reason)[:600]}).{fix}")
        waiting(waited)
        time.sleep(PAUSE_S)


def _find(client: MlflowClient, publication: Publication) -> str | None:
    """Return the first version with this content."""
    query = f"name = '{publication.name}' and tags.`{DIGEST_TAG}` = '{publication.digest}'"
    versions: list[ModelVersion] = list(client.search_model_versions(query))
    return str(min(int(version.version) for version in versions)) if versions else None


def _equal(client: MlflowClient, publication: Publication) -> str | None:
    """Return the first version of the same model with another card, if its files still exist."""
    if not publication.same:
        return None
    query = f"name = '{publication.name}' and tags.`{SAME_TAG}` = '{publication.same}'"
    versions: list[ModelVersion] = sorted(client.search_model_versions(query), key=lambda found: int(found.version))
    return next(
        (str(version.version) for version in versions if _has_files(client, publication, str(version.source))), None
    )


def _has_files(client: MlflowClient, publication: Publication, source: str) -> bool:
    """Return whether a version's source has all files but the card, by their sizes."""
    scheme, _, model_id = source.partition(":/")
    if scheme == "models":
        stored = dict(_stored(client, model_id))
    else:
        folder = Path(unquote(urlsplit(source).path))
        stored = {name: path.stat().st_size for name, path in _files(folder).items()}
    of_each = (CARD, MANIFEST, RECORD)  # publication
    needed = {name: path for name, path in _files(publication.directory).items() if name.split("/")[0] not in of_each}
    return all(stored.get(name) == path.stat().st_size for name, path in needed.items())


def _files(folder: Path) -> dict[str, Path]:
    return {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}


def _retag(client: MlflowClient, publication: Publication, version: str) -> None:
    """Update the tags: an artifact may have another location than at the first attempt."""
    current = client.get_model_version(publication.name, version).tags
    for key, value in publication.tags.items():
        if current.get(key) != value:
            client.set_model_version_tag(publication.name, version, key, value)


def _create(client: MlflowClient, publication: Publication) -> str:
    try:
        client.create_registered_model(publication.name)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
    on_server = urlsplit(tracking_uri()).scheme in ("http", "https")
    model_id = _upload(client, publication) if on_server else None
    created = client.create_model_version(
        publication.name,
        source=f"models:/{model_id}" if model_id else publication.directory.as_uri(),
        model_id=model_id,
        tags={
            DIGEST_TAG: publication.digest,
            **publication.tags,
            **({SAME_TAG: publication.same} if publication.same else {}),
        },
        description=publication.description,
    )
    first = _find(client, publication) or created.version
    if first != str(created.version):  # concurrent publications: the first one wins
        client.delete_model_version(publication.name, created.version)
    return str(first)


def _upload(client: MlflowClient, publication: Publication) -> str:
    """Upload the files as an MLflow logged model; returns its id. An existing one of this name is reused, with the
    files that it lacks."""
    experiment = client.get_experiment_by_name(experiment_name())
    where = experiment.experiment_id if experiment else client.create_experiment(experiment_name(), artifact_location())
    name = publication.name.replace(".", "-")
    models = client.search_logged_models([where], f"name = '{name}' AND tags.`{DIGEST_TAG}` = '{publication.digest}'")
    model = (
        models[0]
        if models
        else client.create_logged_model(where, name, tags={DIGEST_TAG: publication.digest, **publication.tags})
    )
    _complete(client, publication, str(model.model_id))
    if str(model.status) != "READY":
        client.finalize_logged_model(model.model_id, "READY")
    return str(model.model_id)


def _complete(client: MlflowClient, publication: Publication, model_id: str) -> None:
    """Upload the files unless the server has all of them, by their sizes."""
    files = _files(publication.directory)
    stored = dict(_stored(client, model_id))
    if any(stored.get(name) != path.stat().st_size for name, path in files.items()):
        client.log_model_artifacts(model_id, str(publication.directory))


def _stored(client: MlflowClient, model_id: str, folder: str | None = None) -> Iterator[tuple[str, int]]:
    """Yield the files of a logged model on the server, with their sizes."""
    for entry in client.list_logged_model_artifacts(model_id, folder):
        if entry.is_dir:
            yield from _stored(client, model_id, entry.path)
        else:
            yield entry.path, int(entry.file_size or 0)  # a server does not send 0
