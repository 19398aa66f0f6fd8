"""The next night of continuous training, as far as it is known before it.

The registry has the generations that the night continues from. How much of the source's text is new is known only if a
night that was cut off has found it; else the plan assumes as much as the newest generation had.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from baton.infra.flyte.hooks import import_lock
from baton.infra.text import count, size
from baton.infra.tracking.sqlite_file import store_file
from baton.infra.tracking.store import tracking_uri
from baton.tasks.artifacts import Artifact
from baton.tasks.cache_hit import is_missing
from baton.tasks.core.job import StageError
from baton.tasks.core.manifest import ArtifactError
from baton.tasks.data.artifact import Corpus, TokenizedCorpus
from baton.tasks.models.artifact import HFModel
from baton.workflows.continuous_training import calls
from baton.workflows.continuous_training.calls import NEW_TEXT, SERVING, Night
from baton.workflows.continuous_training.generations import (
    data_sets,
    is_tuned,
    named_by,
    part,
    replayed,
    texts_of,
    tokens_of,
)
from baton.workflows.continuous_training.recipe import ContinuousRecipe
from baton.workflows.dag.call import Calls
from baton.workflows.dag.post_training import BASE
from baton.workflows.plan.dry_run import steps_of

if TYPE_CHECKING:
    from baton.tasks.promote.ledger import Generation


@dataclass(frozen=True)
class Part:
    """Calls that the night may run under one lock: lists that are run one after the other."""

    heading: str
    dags: list[Calls]
    given: Mapping[str, Artifact] = field(default_factory=dict)  # what exists before, by the names in the calls
    night: Night | None = None  # of training that continues


@dataclass(frozen=True)
class PlannedNight:
    """The parts of a night, and what they are based on."""

    parts: list[Part]
    note: str


@dataclass(frozen=True)
class _Ledger:
    """The generations of a model in the registry, and its champion."""

    name: str
    generations: "Sequence[Generation]" = ()
    champion: HFModel | None = None

    @property
    def versions(self) -> list[int]:
        return [each.version for each in self.generations]

    @property
    def accepted(self) -> "list[Generation]":
        return [each for each in self.generations if each.accepted]

    @property
    def given(self) -> dict[str, Artifact]:
        return {SERVING: self.champion} if self.champion else {}


def planned_night(recipe: ContinuousRecipe) -> PlannedNight:
    """The next night's parts. Raises UserError for files of the recipe or of the generations that cannot be read."""
    base = _Ledger(recipe.publish.name)
    tuned = _Ledger(recipe.refresh.name) if recipe.refresh else None
    try:
        base, tuned = _read(base), _read(tuned) if tuned else None
        return _planned(recipe, base, tuned)
    except (StageError, ArtifactError) as error:
        why = str(error)
    except ValidationError:
        why = "another version of Baton made them"
    planned = _planned(recipe, _Ledger(base.name), tuned)
    return PlannedNight(planned.parts, f"planned as a first night, since the generations cannot be read: {why}")


def _read(ledger: _Ledger) -> _Ledger:
    """Raises StageError if the registry is unreachable."""
    store = store_file(tracking_uri())
    if store and not store.exists():
        return ledger
    with import_lock():  # MLflow
        from baton.tasks.promote.ledger import champion, generations
    serving = champion(ledger.name, patience_s=0)
    model = part(serving, "model") if serving else None
    return _Ledger(ledger.name, generations(ledger.name, patience_s=0), model)


def _planned(recipe: ContinuousRecipe, base: _Ledger, tuned: _Ledger | None) -> PlannedNight:
    pinned = recipe.pinned_except_corpus()
    dags = [calls.found(pinned, recipe.corpus.pinned(), base.versions)]
    given = named_by(dags[0], base.generations)
    heading = (
        f"{recipe.name}, after version {base.versions[-1]}" if base.versions else f"{recipe.name}, the first night"
    )
    newest: Corpus | None = _cached(dags, given, NEW_TEXT)
    if newest and not recipe.grow.is_enough(newest.documents, newest.bytes):
        note = f"nothing to train on: {size(newest.bytes)} of new text"
        return PlannedNight([Part(heading, dags, given), *_refresh(pinned, base, tuned, is_trained=False)], note)

    dags.append(calls.tokenized(pinned, is_first=not base.generations))
    given |= {"tokenizer": part(base.generations[0], "tokenizer")} if base.generations else {}
    night, note = _night(recipe, base, newest, _cached(dags, given, "shards"))
    dags.append(calls.trained(pinned, night))
    given |= named_by(dags[-1], base.generations) | base.given
    trained = Part(heading, dags, given, night if night.accepted else None)
    return PlannedNight([trained, *_refresh(pinned, base, tuned, is_trained=True)], note)


def _cached(dags: list[Calls], given: Mapping[str, Artifact], title: str) -> Any:
    """The cached artifact of a call; None if there is none, or its files are gone."""
    artifact = next(step.artifact for step in steps_of(dags, given) if step.name == title)
    return None if artifact is None or is_missing(artifact.place) else artifact


def _night(
    recipe: ContinuousRecipe, base: _Ledger, newest: Corpus | None, shards: TokenizedCorpus | None
) -> tuple[Night, str]:
    """The night, and what it is based on. `newest` and `shards` are the new text, as far as it is cached."""
    has_champion = base.champion is not None
    if not base.accepted:
        return Night({}, 0, has_champion=has_champion), f"training begins: {base.name} has no accepted version"
    last: TokenizedCorpus = part(base.accepted[-1], "shards")
    new, vocabulary = tokens_of(shards or last), recipe.pretrain.model.vocab_size or last.vocab_size
    texts = replayed(base.accepted, newest) if newest else texts_of(base.accepted, {})
    sets = data_sets(texts, len(base.accepted), recipe.grow.compact)
    version = base.accepted[-1].version
    note = f"training continues from version {version}"
    if shards is None:
        note += (
            f"; how much text is new is known only in the night: the plan assumes {count(sum(new.values()))} tokens, "
            f"as many as version {version} had"
        )
    return Night(new, vocabulary, [each.version for each in base.accepted], sets, has_champion), note


def _refresh(recipe: ContinuousRecipe, base: _Ledger, tuned: _Ledger | None, is_trained: bool) -> Iterator[Part]:
    """The post-training that follows: of tonight's model if it is promoted, or, if nothing is trained, of the champion
    if it is not tuned yet."""
    if tuned is None:
        return
    accepted, has_champion = [each.version for each in base.accepted], tuned.champion is not None
    if is_trained:
        version = max(base.versions, default=0) + 1
        dag = calls.refreshed(recipe, [*accepted, version], version, has_champion)
        yield Part(f"{tuned.name}, if the new version of {base.name} is promoted", [dag])
    elif base.champion and not is_tuned(base.champion, tuned.generations):
        dag = calls.refreshed(recipe, accepted, base.versions[-1], has_champion)
        given = {BASE: base.champion} | named_by(dag, base.generations) | tuned.given
        yield Part(f"{tuned.name}, of the champion of {base.name}", [dag], given)
