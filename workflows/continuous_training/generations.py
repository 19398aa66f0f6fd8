"""Read a model's earlier generations from the registry, and select their text for replay.

MLflow and PyArrow are imported late to keep `pyflyte run --help` fast.
"""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from itertools import groupby
from typing import TYPE_CHECKING, Any

from baton.infra.errors import UserError
from baton.infra.flyte.hooks import import_lock
from baton.infra.tracking.outage import recoverable
from baton.infra.tracking.store import tracking_uri
from baton.tasks.artifacts import Artifact
from baton.tasks.data.artifact import Corpus, TokenizedCorpus
from baton.tasks.models.artifact import HFModel
from baton.workflows.continuous_training.calls import Replayed, of_version
from baton.workflows.dag.call import Calls

if TYPE_CHECKING:
    from baton.tasks.promote.ledger import Generation, GenerationArtifact

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


def named_by(dag: Calls, generations: "Sequence[Generation]") -> dict[str, Artifact]:
    """The generations' artifacts that calls have as inputs, by the names that they have there. Raises UserError."""
    used = {title for call in dag for title in call.titles()}
    if not generations:
        return {}
    with _ledger() as ledger:
        wanted = {
            of_version(part, generation.version): generation.part(part)
            for generation in generations
            for part in ledger.PARTS
            if of_version(part, generation.version) in used
        }
    return dict(zip(wanted, _loaded([*wanted.values()]), strict=True))


def parts(generations: "Sequence[Generation]", name: str) -> list[Any]:
    """The part of that name of several generations. Raises UserError."""
    with _ledger():
        wanted = [generation.part(name) for generation in generations]
    return _loaded(wanted)


def _loaded(wanted: "Sequence[GenerationArtifact]") -> list[Artifact]:
    with _ledger() as ledger:
        pool = ThreadPoolExecutor(READERS)
        try:  # with a copy of the context, which has Flyte's access to storage
            pending = [pool.submit(copy_context().run, ledger.load, one) for one in wanted]
            return [each.result() for each in pending]
        finally:
            pool.shutdown(cancel_futures=True)


def champion(name: str) -> HFModel | None:
    """The champion's model, if there is one. Raises UserError."""
    with _ledger() as ledger:
        generation = ledger.champion(name)
    model: HFModel | None = part(generation, "model") if generation else None
    return model


@contextmanager
def _ledger() -> Iterator[Any]:
    """A LedgerError is the user's. In a pod, an unreachable registry is an error that Flyte retries."""
    with import_lock():
        from baton.infra.tracking.sqlite import make_tables
        from baton.tasks.promote import ledger
        from baton.tasks.publish.registry import RegistryAway
    try:
        with recoverable(RegistryAway):
            make_tables(tracking_uri())  # the very first run creates the store
            yield ledger
    except ledger.LedgerError as error:
        raise UserError(str(error)) from error


def replayed(accepted: "list[Generation]", newest: Corpus) -> list[Replayed]:
    """The text to replay of each generation, oldest first, without generations whose training text is gone. Reads
    manifests and a list of counts alone, however large the corpora are. Raises UserError, ArtifactError."""
    from baton.tasks.data.gone import gone_counts
    from baton.tasks.data.source_changes import GONE_COUNTS

    gone = gone_counts(newest.local([GONE_COUNTS]))
    return texts_of(accepted, gone)


def texts_of(accepted: "Sequence[Generation]", gone: Mapping[str, Mapping[str, int]]) -> list[Replayed]:
    """The same by the number of documents that are `gone` from each part of a corpus, whose digest is the key."""
    pairs = zip(parts(accepted, "corpus"), parts(accepted, "shards"), strict=True)
    texts = [
        Replayed(number, accepted[number].version, remaining(corpus, shards, lost), whole=not lost)
        for number, (corpus, shards) in enumerate(pairs)
        for lost in [gone.get(corpus.digest, {})]
    ]
    return [text for text in texts if any(text.tokens.values())]


def remaining(corpus: Corpus, shards: TokenizedCorpus, gone: Mapping[str, int]) -> dict[str, int]:
    """The training tokens that are left of a corpus in each source, by the number of documents that are `gone` from
    each part."""
    from baton.tasks.data.documents import stem

    tokens = {}
    for name, trained in tokens_of(shards).items():
        documents = corpus.sources[name]["documents"] if name else corpus.documents
        tokens[name] = round(trained * (1 - gone.get(stem("train", name), 0) / max(1, documents)))
    return tokens


def is_tuned(base: HFModel, tuned: "Sequence[Generation]") -> bool:
    """Return whether one of the generations of a refresh was made from `base`."""
    return any(generation.part("from_base").digest == base.digest for generation in tuned)


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
