"""The versions of a registered model, and their aliases.

`champion` is the version to serve, `previous` the one before it (tasks/publish/champion.py moves them). Their history
is only in the registry: the tag `baton.champion` of each version has the periods in which it was champion.
"""

import json
from dataclasses import dataclass
from typing import Any

from mlflow import MlflowClient
from mlflow.entities.model_registry import ModelVersion, RegisteredModel
from mlflow.exceptions import MlflowException

from baton.infra.tracking.set_aside import OUTCOME_TAG, TERMS_TAG
from baton.tasks.publish.registry import DIGEST_TAG, PATIENCE_S, ask

CHAMPION, PREVIOUS = "champion", "previous"
MODEL_TAG = "baton.model"
RESUMED_TAG = "baton.resumed"  # the digest of the checkpoint that its training continued from
DECISION_TAG = "baton.decision"  # the decision's digest, written before the alias moves


@dataclass(frozen=True)
class Version:
    """One version of a registered model."""

    name: str
    version: int
    digest: str  # the HFModel's
    content: str  # digest of the published files: the HFModel's and the card
    source: str
    tags: dict[str, str]


def version_at(name: str, alias: str, patience_s: float = PATIENCE_S) -> Version | None:
    """Return the version that has the alias; None if the model or the alias does not exist. Raises StageError if the
    registry does not answer for `patience_s`."""
    return ask(lambda client: _at(client, find_model(client, name), alias), patience_s=patience_s)


def compared_champion(name: str, patience_s: float = PATIENCE_S) -> Version | None:
    """Return the champion with which a candidate is compared: if the promotion of the current one was interrupted
    before its outcome was written, the one before it. Raises StageError."""
    champion = version_at(name, CHAMPION, patience_s)
    interrupted = champion and DECISION_TAG in champion.tags and OUTCOME_TAG not in champion.tags
    return version_at(name, PREVIOUS, patience_s) if interrupted else champion


def is_registered(name: str, patience_s: float = PATIENCE_S) -> bool:
    """Return whether there is a registered model of this name. Raises StageError."""
    return ask(lambda client: find_model(client, name) is not None, patience_s=patience_s)


def versions(name: str, patience_s: float = PATIENCE_S) -> list[Version]:
    """Return every version, oldest first. Raises StageError."""
    return ask(lambda client: all_versions(client, name), patience_s=patience_s)


def terms(version: Version) -> list[dict[str, Any]]:
    """Return the periods in which a version was champion, oldest first: {"since", "until", "why"}, in UTC; `until` is
    None for the current period."""
    return list(json.loads(version.tags.get(TERMS_TAG, "[]")))


def is_open(version: Version) -> bool:
    """Return whether a version's last term as champion has no end."""
    past = terms(version)
    return bool(past) and past[-1]["until"] is None


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
