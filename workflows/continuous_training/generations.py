"""Read a model's earlier generations from the registry, and select their text for replay.

MLflow and PyArrow are imported late to keep `pyflyte run --help` fast.
"""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

from infra.errors import UserError
from infra.flyte.hooks import import_lock
from infra.tracking.outage import recoverable
from infra.tracking.store import tracking_uri
from tasks.data.artifact import Corpus, TokenizedCorpus
from tasks.models.artifact import HFModel

if TYPE_CHECKING:
    from tasks.promote.ledger import Generation

READERS = 16  # manifests that are fetched at a time: after 1,000 nights there are 1,000 of each kind


def generations(name: str) -> "list[Generation]":
    """Every generation of a registered model, oldest first."""
    with _ledger() as ledger:
        registered: list[Generation] = ledger.generations(name)
        return registered


def part(generation: "Generation", name: str) -> Any:
    """The artifact that was the generation's corpus, shards, checkpoint, …. Raises UserError when its
    files are gone."""
    with _ledger() as ledger:
        return ledger.load(generation.part(name))


def parts(generations: "Sequence[Generation]", name: str) -> list[Any]:
    """The same of several generations. Raises UserError."""
    wanted = [generation.part(name) for generation in generations]
    with _ledger() as ledger:
        pool = ThreadPoolExecutor(READERS)
        try:  # with a copy of the context, which has Flyte's access to storage
            pending = [pool.submit(copy_context().run, ledger.load, one) for one in wanted]
            return [each.result() for each in pending]
        finally:
            pool.shutdown(cancel_futures=True)


def corpora_of(generations: "Sequence[Generation]") -> list[Corpus]:
    """Their corpora, for stages that read the files alone. Raises UserError."""
    return parts(generations, "corpus")


def champion(name: str) -> list[HFModel]:
    """The champion's model, or an empty list."""
    with _ledger() as ledger:
        generation = ledger.champion(name)
    return [part(generation, "model")] if generation else []


@contextmanager
def _ledger() -> Iterator[Any]:
    """A LedgerError is the user's. In a pod, an unreachable registry is an error that Flyte retries."""
    with import_lock():
        from infra.tracking.sqlite import make_tables
        from tasks.promote import ledger
        from tasks.publish.registry import RegistryAway
    try:
        with recoverable(RegistryAway):
            make_tables(tracking_uri())  # the very first run creates the store
            yield ledger
    except ledger.LedgerError as error:
        raise UserError(str(error)) from error


@dataclass(frozen=True)
class Replayed:
    """An earlier generation's text."""

    number: int  # among the accepted generations, from 0
    corpus: Corpus
    shards: TokenizedCorpus
    tokens: dict[str, int]  # training tokens still in each source, estimated from its documents
    whole: bool  # no document is gone


def replayed(accepted: "list[Generation]", newest: Corpus) -> list[Replayed]:
    """The text to replay of each generation, oldest first, without generations whose training text is gone. Reads
    manifests and a list of counts alone, however large the corpora are. Raises UserError, ArtifactError."""
    from tasks.data.gone import gone_counts
    from tasks.data.source_changes import GONE_COUNTS

    gone = gone_counts(newest.local([GONE_COUNTS]))
    pairs = zip(corpora_of(accepted), parts(accepted, "shards"), strict=True)
    texts = [
        remaining(number, corpus, shards, gone.get(corpus.digest, {})) for number, (corpus, shards) in enumerate(pairs)
    ]
    return [text for text in texts if any(text.tokens.values())]


def remaining(number: int, corpus: Corpus, shards: TokenizedCorpus, gone: Mapping[str, int]) -> Replayed:
    """What is left of a corpus in the source, by the number of documents that are `gone` from each part."""
    from tasks.data.documents import stem

    tokens = {}
    for name, trained in tokens_of(shards).items():
        documents = corpus.sources[name]["documents"] if name else corpus.documents
        tokens[name] = round(trained * (1 - gone.get(stem("train", name), 0) / max(1, documents)))
    return Replayed(number, corpus, shards, tokens, whole=not gone)


def data_sets(texts: Sequence[Replayed], accepted: int, size: int) -> list[list[Replayed]]:
    """The texts that make one data set each, of so many accepted generations. Every `size` successive generations are
    put together and stay so: at most one data set of several generations is new each night. Those with and without
    named sources stay apart."""

    def place(text: Replayed) -> tuple[int, int, bool]:
        block = text.number // size
        return block, 0 if block < accepted // size else text.number, "" in text.tokens

    return [list(group) for _, group in groupby(texts, place)]


def tokens_of(shards: TokenizedCorpus) -> dict[str, int]:
    """The training tokens of each named source; of "" if there is none."""
    return shards.sources or {"": shards.tokens}
