"""Move the champion: promotion and rollback.

MLflow has no compare-and-set for aliases. So a writer first sets a claim on the registered model (a unique tag) and
then looks for other claims: of two concurrent writers at least one sees the other's claim, backs off and retries.

A writer may die and leave its claim, or be suspended and continue later. On the writer's machine the two cases can be
distinguished. Elsewhere a claim is valid for CLAIM_S, and its writer begins no write after HOLD_S. The only case that
is not covered is a machine that is suspended for longer within a single write.
"""

import json
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Any, TypeVar
from uuid import uuid4

from mlflow import MlflowClient

from baton.infra.process.process_id import has_ended, this_process
from baton.infra.progress import say
from baton.infra.tracking.set_aside import ROLLED_BACK, TERMS_TAG
from baton.tasks.core.job import StageError
from baton.tasks.publish.aliases import (
    CHAMPION,
    PREVIOUS,
    Version,
    all_versions,
    as_version,
    find_model,
    is_open,
    number_at,
    terms,
)
from baton.tasks.publish.registry import ask

T = TypeVar("T")
Hold = Callable[[], MlflowClient]  # returns the client for one call; raises _Expired

CLAIM = "baton.claim."
CLAIM_S = 60.0  # validity of a claim by another machine
HOLD_S = CLAIM_S / 2  # time in which the writer may begin a write; the rest is for the write to arrive
WAIT_S, MESSAGE_AFTER_S = (
    600.0,
    5.0,
)  # waits for a claim by a running process of this machine: in all, and before a message
TRIES = 3
MAX_TERMS = 30  # MLflow accepts 5,000 characters in a tag
_ONE_THREAD = threading.Lock()


class ChampionChanged(StageError):
    """Raised if the champion is not the expected version: another was promoted, or it was rolled back, in the
    meantime."""


class ChampionClaimed(StageError):
    """Raised if a process of this machine has claimed the champion for longer than a move takes."""


class _Expired(Exception):
    """Raised if our claim may not be valid anymore."""


class NoSuchVersion(StageError):
    """Raised if there is no such version to roll back to."""


def promote(name: str, version: int, expected: int | None) -> None:
    """Make `version` champion if `expected` (None: no version) is champion now; `expected` becomes `previous`.
    Idempotent: a second call completes an interrupted one. Raises ChampionChanged, StageError."""

    def move(hold: Hold) -> None:
        model = find_model(hold(), name)
        now = number_at(model, CHAMPION)
        if now not in (version, expected):
            raise ChampionChanged(
                f"the champion of {name} is {_name(now)}, not {_name(expected)}, which version {version} was "
                "compared with; compare it with the current champion: run the same command again"
            )
        was = number_at(model, PREVIOUS) if now == version else now  # `previous` moves first
        _move(hold, name, was, version, f"version {version} was promoted")

    ask(lambda client: while_claimed(client, name, move))


def make_champion(name: str, version: int) -> None:
    """Make `version` champion; the current champion, whichever it is, becomes `previous`. Idempotent. Raises
    StageError."""

    def move(hold: Hold) -> None:
        model = find_model(hold(), name)
        now = number_at(model, CHAMPION)
        was = number_at(model, PREVIOUS) if now == version else now
        _move(hold, name, was, version, f"version {version} was published as champion")

    ask(lambda client: while_claimed(client, name, move))


def roll_back(name: str, to: int | None = None) -> tuple[Version, Version]:
    """Make `previous`, or the earlier champion `to`, champion again; returns the former and the new champion. The
    former becomes `previous`, so that a second rollback undoes the first. Raises NoSuchVersion, ChampionChanged,
    StageError."""
    ask(lambda client: _check_registered(client, name))
    chosen: list[tuple[Version, Version]] = []

    def move(hold: Hold) -> None:
        if not chosen:  # once: the move may be retried
            chosen.append(_choose(hold(), name, to))
        was, now = chosen[0]
        champion = number_at(find_model(hold(), name), CHAMPION)
        if champion not in (None, was.version, now.version):
            raise ChampionChanged(f"the champion of {name} has just become {_name(champion)}; check it, and retry")
        why = f"{ROLLED_BACK if now.version < was.version else 'turned'} to version {now.version}"
        _move(hold, name, was.version, now.version, why)

    ask(lambda client: while_claimed(client, name, move))
    return chosen[0]


def while_claimed(client: MlflowClient, name: str, work: Callable[[Hold], T]) -> T:
    """Call `work(hold)` with the exclusive right to change this model's aliases and tags. `work` makes each of its
    calls with the client that `hold()` returns, and is repeated if it takes too long. Raises ChampionClaimed,
    StageError."""
    with _ONE_THREAD:
        for _ in range(TRIES):
            with suppress(_Expired), _claimed(client, name) as hold:
                return work(hold)
    raise StageError(
        f"{name}: changing it in the registry took longer than {HOLD_S:g} s, {TRIES} times: the registry is slow, "
        "or this machine was suspended. Run the same command again"
    )


@contextmanager
def _claimed(client: MlflowClient, name: str) -> Iterator[Hold]:
    me, began, reported = this_process(), _clock(), False
    seen: dict[str, float] = {}  # others' claims and when they were first seen, by this machine's own clock
    while True:
        since, mine = _clock(), f"{CLAIM}{uuid4().hex}"
        client.set_registered_model_tag(name, mine, me)
        model = find_model(client, name)
        others = {tag: by for tag, by in (model.tags if model else {}).items() if tag.startswith(CLAIM) and tag != mine}
        if not others:
            break
        client.delete_registered_model_tag(name, mine)
        for tag, by in others.items():
            ended = by == me or has_ended(by)  # a claim of this process is left from a failed call
            if ended or (ended is None and _clock() - seen.setdefault(tag, _clock()) > CLAIM_S):
                client.delete_registered_model_tag(name, tag)
        who = f"{name}: its champion is being moved by process {' of '.join(by.split()[:2])}"
        if _clock() - began > WAIT_S:
            raise ChampionClaimed(f"{who} for {WAIT_S:g} s. Let it continue (kill -CONT) or end it, and run this again")
        if _clock() - began > MESSAGE_AFTER_S and not reported:
            say(f"{who}; waiting for it")
            reported = True
        time.sleep(random.uniform(0.05, 0.5))  # random, so that two writers do not retry together

    def hold() -> MlflowClient:
        if _clock() - since > HOLD_S:
            raise _Expired
        return client

    try:
        yield hold
    finally:
        client.delete_registered_model_tag(name, mine)


def _clock() -> float:
    """Return seconds of a clock that also runs while the machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _move(hold: Hold, name: str, was: int | None, now: int, why: str) -> None:
    """Move both aliases and write the terms; each step may be repeated."""
    if was is not None and was != now:
        hold().set_registered_model_alias(name, PREVIOUS, str(was))
    hold().set_registered_model_alias(name, CHAMPION, str(now))
    when, replaced = _utc(), f"replaced by version {was or now}"
    for version in all_versions(hold(), name):
        if version.version == was != now:
            _write_terms(hold, name, was, lambda past: _ended(past, when, why))
        elif version.version != now and is_open(version):  # the alias was moved from it by other means
            _write_terms(hold, name, version.version, lambda past: _ended(past, when, replaced))
    _write_terms(hold, name, now, lambda past: _begun(past, when))


def _write_terms(hold: Hold, name: str, version: int, change: Callable[[list[Any]], list[Any]]) -> None:
    past = terms(as_version(hold().get_model_version(name, str(version))))
    if (changed := change(past)) != past:
        hold().set_model_version_tag(name, str(version), TERMS_TAG, json.dumps(changed[-MAX_TERMS:]))


def _begun(past: list[Any], when: str) -> list[Any]:
    return past if past and past[-1]["until"] is None else [*past, {"since": when, "until": None, "why": None}]


def _ended(past: list[Any], when: str, why: str) -> list[Any]:
    if not past:  # the alias was set by hand, or by `publish`
        past = [{"since": None, "until": None, "why": None}]
    last = past[-1]
    return past if last["until"] else [*past[:-1], last | {"until": when, "why": why}]


def _check_registered(client: MlflowClient, name: str) -> None:
    if find_model(client, name) is None:
        known = ", ".join(sorted(model.name for model in client.search_registered_models())) or "none"
        raise NoSuchVersion(f"{name}: no such model in the registry; there are: {known}")


def _choose(client: MlflowClient, name: str, to: int | None) -> tuple[Version, Version]:
    """Return the champion, and the version to roll back to. Raises NoSuchVersion."""
    model = find_model(client, name)
    by_number = {version.version: version for version in all_versions(client, name)}
    at = number_at(model, CHAMPION)
    unended = [number for number, version in by_number.items() if is_open(version) and number != at]
    was = at or max(unended, default=None)  # the alias was deleted
    if was is None:
        raise NoSuchVersion(f"{name}: no version is champion, so there is nothing to roll back")
    # if the alias was moved by other means, `previous` is older
    now = to or max(unended if at else (), default=number_at(model, PREVIOUS))
    if now is None:
        raise NoSuchVersion(f"{name}: no champion before version {was} is known, so there is none to roll back to")
    earlier = [number for number, version in by_number.items() if terms(version) and number != at]
    if now not in earlier:
        known = ", ".join(map(str, earlier)) or "none"
        raise NoSuchVersion(f"{name}: version {now}: not an earlier champion; those are: {known} (champion: {was})")
    return by_number[was], by_number[now]


def _name(version: int | None) -> str:
    return "none" if version is None else f"version {version}"


def _utc() -> str:
    """Return the time with milliseconds, so that two moves within a second have an order."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")
