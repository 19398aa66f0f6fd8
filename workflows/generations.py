"""Read a model's earlier generations from the registry, and select their text for replay.

MLflow and PyArrow are imported late to keep `pyflyte run --help` fast.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from infra.flyte.hooks import import_lock
from infra.tracking.outage import recoverable
from infra.tracking.store import tracking_uri
from tasks.artifacts import Corpus, HFModel, TokenizedCorpus

if TYPE_CHECKING:
    from tasks.promote.ledger import Generation


def generations(name: str) -> "list[Generation]":
    """Every generation of a registered model, oldest first."""
    with _ledger() as ledger:
        found: list[Generation] = ledger.generations(name)
        return found


def part(generation: "Generation", name: str) -> Any:
    """The artifact that was the generation's corpus, shards, checkpoint, …. Raises LedgerError when its
    files are gone."""
    with _ledger() as ledger:
        return ledger.load(generation.part(name))


def champion(name: str) -> list[HFModel]:
    """The champion's model, or an empty list."""
    with _ledger() as ledger:
        found = ledger.champion(name)
    return [part(found, "model")] if found else []


@contextmanager
def _ledger() -> Iterator[Any]:
    """In a pod, an unreachable registry is an error that Flyte retries."""
    with import_lock():
        from infra.tracking.sqlite import make_tables
        from tasks.promote import ledger
        from tasks.publish.registry import RegistryAway
    with recoverable(RegistryAway):
        make_tables(tracking_uri())  # the very first run creates the store
        yield ledger


@dataclass(frozen=True)
class Replayed:
    """An earlier generation's text."""

    corpus: Corpus
    shards: TokenizedCorpus
    tokens: dict[str, int]  # training tokens still in each source, estimated from its documents
    whole: bool  # no document is gone


def replayed(accepted: "list[Generation]", newest: Corpus) -> list[Replayed]:
    """The text to replay of each generation, oldest first, without generations whose training text is gone. Raises
    LedgerError."""
    from tasks.data.documents import read_names
    from tasks.data.source_changes import Changes

    gone = set(Changes.read(newest.local()).gone)

    def remaining(corpus: Corpus, split: Any, source: str | None) -> float:
        lost = [name in gone for name, _ in read_names(corpus.local(), split, source)]
        return 1 - sum(lost) / max(1, len(lost))

    found = []
    for generation in accepted:
        corpus, shards = part(generation, "corpus"), part(generation, "shards")
        left = {name: remaining(corpus, "train", name or None) for name in tokens_of(shards)}
        whole = {*left.values(), remaining(corpus, "held_out", None)} == {1.0}
        tokens = {name: round(number * left[name]) for name, number in tokens_of(shards).items()}
        found.append(Replayed(corpus, shards, tokens, whole))
    return [replay for replay in found if any(replay.tokens.values())]


def tokens_of(shards: TokenizedCorpus) -> dict[str, int]:
    """The training tokens of each named source; of "" if there is none."""
    return shards.sources or {"": shards.tokens}
