"""The champion changes: by promotion, and back by rollback.

MLflow moves an alias without looking at where it was. So a mover first hangs a claim on the registered
model (a tag of its own) and then looks for others': of two at once at least one sees the other, and who
sees another steps back and tries again.
"""

import json
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

from mlflow import MlflowClient

from tasks.job import StageError
from tasks.publish.aliases import (
    CHAMPION,
    PREVIOUS,
    ROLLED_BACK_TAG,
    TERMS_TAG,
    Version,
    all_versions,
    as_version,
    find_model,
    number_at,
    terms,
)
from tasks.publish.registry import ask

CLAIM = "baton.claim."
CLAIM_S = 60.0  # a claim that stands this long is of a mover that died
TERMS_KEPT = 30  # MLflow takes 5,000 characters a tag


class ChampionChanged(StageError):
    """The champion is not the version that was expected: another was promoted or rolled back meanwhile."""


class NoSuchVersion(StageError):
    """There is no version to turn to."""


def promote(name: str, version: int, expected: int | None) -> None:
    """Make `version` champion if `expected` (None: nobody) is; it becomes `previous`. Called again, it
    completes what was cut off. Raises ChampionChanged, StageError."""

    claim = f"{CLAIM}{uuid4().hex}"

    def attempt(client: MlflowClient) -> None:
        with claimed(client, name, claim):
            model = find_model(client, name)
            now = number_at(model, CHAMPION)
            if now not in (version, expected):
                raise ChampionChanged(
                    f"the champion of {name} is {_said(now)}, not {_said(expected)}, which version {version} was "
                    "compared with; compare it with the current champion: run the same command again"
                )
            was = number_at(model, PREVIOUS) if now == version else now  # `previous` moves first
            _move(client, name, was, version, f"version {version} was promoted")

    ask(attempt)


def roll_back(name: str, to: int | None = None) -> tuple[Version, Version]:
    """Make `previous`, or the earlier champion `to`, champion again; returns what was and what is. What was
    becomes `previous`, so that a second rollback undoes the first. The versions after the one that is
    turned back to are marked as rolled back until then. Raises NoSuchVersion, ChampionChanged, StageError."""
    was, now = ask(lambda client: _turn(client, name, to))  # decided once, then done however often it takes
    when = _utc()
    claim = f"{CLAIM}{uuid4().hex}"

    def attempt(client: MlflowClient) -> None:
        with claimed(client, name, claim):
            champion = number_at(find_model(client, name), CHAMPION)
            if champion not in (was.version, now.version):
                raise ChampionChanged(f"the champion of {name} has just become {_said(champion)}; look, and try again")
            _mark(client, all_versions(client, name), was.version, now.version, when)
            why = f"{'rolled back' if now.version < was.version else 'turned'} to version {now.version}"
            _move(client, name, was.version, now.version, why)

    ask(attempt)
    return was, now


@contextmanager
def claimed(client: MlflowClient, name: str, mine: str) -> Iterator[None]:
    """Be the only one who moves this model's aliases, while the tag `mine` is on it."""
    seen: dict[str, float] = {}  # others' claims, and since when: by this process's clock alone
    while True:
        client.set_registered_model_tag(name, mine, "1")
        model = find_model(client, name)
        others = [tag for tag in (model.tags if model else ()) if tag.startswith(CLAIM) and tag != mine]
        if not others:
            break
        client.delete_registered_model_tag(name, mine)
        for tag in others:
            if time.monotonic() - seen.setdefault(tag, time.monotonic()) > CLAIM_S:
                client.delete_registered_model_tag(name, tag)
        time.sleep(random.uniform(0.05, 0.5))  # two that step back together must not come back together
    try:
        yield
    finally:
        client.delete_registered_model_tag(name, mine)


def _move(client: MlflowClient, name: str, was: int | None, now: int, why: str) -> None:
    """Move both aliases and write the terms; each step may be repeated."""
    if was is not None and was != now:
        client.set_registered_model_alias(name, PREVIOUS, str(was))
    client.set_registered_model_alias(name, CHAMPION, str(now))
    when = _utc()
    if was is not None and was != now:
        _write_terms(client, name, was, lambda past: _ended(past, when, why))
    _write_terms(client, name, now, lambda past: _begun(past, when))


def _write_terms(client: MlflowClient, name: str, version: int, change: Callable[[list[Any]], list[Any]]) -> None:
    past = terms(as_version(client.get_model_version(name, str(version))))
    if (told := change(past)) != past:
        client.set_model_version_tag(name, str(version), TERMS_TAG, json.dumps(told[-TERMS_KEPT:]))


def _begun(past: list[Any], when: str) -> list[Any]:
    return past if past and past[-1]["until"] is None else [*past, {"since": when, "until": None, "why": None}]


def _ended(past: list[Any], when: str, why: str) -> list[Any]:
    if not past:  # the alias was set by hand, or by `publish`
        past = [{"since": None, "until": None, "why": None}]
    last = past[-1]
    return past if last["until"] else [*past[:-1], last | {"until": when, "why": why}]


def _mark(client: MlflowClient, found: list[Version], was: int, now: int, when: str) -> None:
    """What was rolled back together with `now` is so no more; what is after it is, if this goes backwards."""
    before = {each.version: each.tags.get(ROLLED_BACK_TAG) for each in found}
    after = {number: None if mark == before[now] else mark for number, mark in before.items()}
    if now < was:
        after |= {number: mark or when for number, mark in after.items() if number > now}
    for each in found:
        number, mark = each.version, after[each.version]
        if mark and mark != before[number]:
            client.set_model_version_tag(each.name, str(number), ROLLED_BACK_TAG, mark)
        elif before[number] and not mark:
            client.delete_model_version_tag(each.name, str(number), ROLLED_BACK_TAG)


def _turn(client: MlflowClient, name: str, to: int | None) -> tuple[Version, Version]:
    """The champion, and the version to turn to. Raises NoSuchVersion."""
    model = find_model(client, name)
    if model is None:
        known = ", ".join(sorted(each.name for each in client.search_registered_models())) or "none"
        raise NoSuchVersion(f"{name}: no such model in the registry; there are: {known}")
    was, now = number_at(model, CHAMPION), to or number_at(model, PREVIOUS)
    if was is None:
        raise NoSuchVersion(f"{name}: no version is champion, so there is nothing to roll back")
    if now is None:
        raise NoSuchVersion(f"{name}: version {was} is champion and none was before it: there is nothing to turn to")
    found = {each.version: each for each in all_versions(client, name)}
    earlier = [number for number, each in found.items() if terms(each) and number != was]
    if now not in earlier:
        said = ", ".join(map(str, earlier)) or "none"
        raise NoSuchVersion(f"{name}: version {now}: not an earlier champion; those are: {said} (champion: {was})")
    return found[was], found[now]


def _said(version: int | None) -> str:
    return "nobody" if version is None else f"version {version}"


def _utc() -> str:
    """In milliseconds: two moves within a second have an order."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")
