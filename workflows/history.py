"""What the registry tells of a model's earlier generations, and what of their text is read again.

MLflow and PyArrow are imported where they are used: not on the path of `pyflyte run --help`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from infra.tracking.away import recoverable
from infra.tracking.forwarder import flyte_s_import_lock
from infra.tracking.store import tracking_uri
from tasks.artifacts import Corpus, HFModel, TokenizedCorpus

if TYPE_CHECKING:
    from tasks.promote.ledger import Generation


def generations(name: str) -> "list[Generation]":
    """Every generation of a registered model, oldest first."""
    with _ledger() as ledger:
        found: list[Generation] = ledger.generations(name)
        return found


def part(of: "Generation", name: str) -> Any:
    """The artifact that was the generation's corpus, shards, checkpoint, …. Raises LedgerError when its
    files are gone."""
    with _ledger() as ledger:
        return ledger.load(of.part(name))


def champion(name: str) -> list[HFModel]:
    """The champion's model, if there is one."""
    with _ledger() as ledger:
        found = ledger.champion(name)
    return [part(found, "model")] if found else []


@contextmanager
def _ledger() -> Iterator[Any]:
    """In a pod a registry that is away is an error after which Flyte may try again."""
    with flyte_s_import_lock():
        from infra.tracking.sqlite import make_tables
        from tasks.promote import ledger
        from tasks.publish.registry import RegistryAway
    with recoverable(RegistryAway):
        make_tables(tracking_uri())  # the first run of all finds no store, and creates it
        yield ledger


@dataclass(frozen=True)
class Replayed:
    """An earlier generation's text."""

    corpus: Corpus
    shards: TokenizedCorpus
    tokens: int  # to train on that are still in the source, as far as documents tell
    whole: bool  # nothing of it is gone


def replayed(accepted: "list[Generation]", newest: Corpus) -> list[Replayed]:
    """Of each generation, oldest first; one whose text to train on is all gone is left out. Raises LedgerError."""
    from tasks.data.changes import Changes
    from tasks.data.documents import SPLITS, read_names

    gone = set(Changes.read(newest.local()).gone)
    found = []
    for each in accepted:
        corpus, shards = part(each, "corpus"), part(each, "shards")
        lost = {split: [name in gone for name, _ in read_names(corpus.local(), split)] for split in SPLITS}
        kept = 1 - sum(lost["train"]) / max(1, len(lost["train"]))
        found.append(Replayed(corpus, shards, round(shards.tokens * kept), not any(map(any, lost.values()))))
    return [each for each in found if each.tokens]
