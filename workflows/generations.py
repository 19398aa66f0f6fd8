"""Read a model's earlier generations from the registry, and select their text for replay.

MLflow and PyArrow are imported late to keep `pyflyte run --help` fast.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from infra.flyte_hooks import import_lock
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
    tokens: int  # training tokens still in the source, estimated from its documents
    whole: bool  # no document is gone


def replayed(accepted: "list[Generation]", newest: Corpus) -> list[Replayed]:
    """The text to replay of each generation, oldest first, without generations whose training text is gone. Raises
    LedgerError."""
    from tasks.data.changes import Changes
    from tasks.data.documents import SPLITS, read_names

    gone = set(Changes.read(newest.local()).gone)
    found = []
    for generation in accepted:
        corpus, shards = part(generation, "corpus"), part(generation, "shards")
        lost = {split: [name in gone for name, _ in read_names(corpus.local(), split)] for split in SPLITS}
        remaining = 1 - sum(lost["train"]) / max(1, len(lost["train"]))
        found.append(Replayed(corpus, shards, round(shards.tokens * remaining), not any(map(any, lost.values()))))
    return [replay for replay in found if replay.tokens]
