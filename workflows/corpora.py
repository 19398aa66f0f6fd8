"""The corpora of a DAG, the rows that they must not contain, and their tokens.

On a Flyte cluster with `machines`, pods read a corpus' partitions, or tokenize them, first and side by side. They are
nodes of the DAG and not an array node (flytekit's `map_task`), which would run past the checks of a stage. The DAG
grows with the machines, never with the partitions.
"""

from collections.abc import Sequence
from typing import TypeVar

from infra.pod import this_pod
from tasks.artifacts import Artifact, Corpus, Rows, StoredPartitions, TokenizedCorpus, Tokenizer
from tasks.data.curate_spec import against_evaluation
from tasks.data.spec import CorpusSpec, ReadShareSpec, ShardsSpec, ShareSpec
from tasks.data.task import encode_partitions, find_new, prepare_clean_corpus, prepare_corpus, read_partitions, tokenize
from tasks.spec import StageSpec
from workflows.recipe import Recipe
from workflows.tuning import prepared

A = TypeVar("A", bound=Artifact)


def evaluated_names(recipe: Recipe) -> list[str]:
    """The evaluated sets of rows, if a corpus is decontaminated against them."""
    corpora = [recipe.corpus, *recipe.more_corpora]
    needed = any(corpus and against_evaluation(corpus.curate) for corpus in corpora)
    return recipe.evaluate.sets() if recipe.evaluate and needed else []


def evaluated_first(recipe: Recipe) -> dict[str, Rows]:
    """These sets, prepared before the corpora."""
    return prepared(recipe, None, evaluated_names(recipe))


def pods(spec: StageSpec, machines: int) -> int:
    """How many share a stage's work; 0 outside of a cluster, or where SkyPilot places the stage."""
    return 0 if machines == 1 or spec.placement or this_pod() is None else machines


def shares(spec: CorpusSpec) -> list[ReadShareSpec]:
    """What each pod reads of a corpus."""
    number = pods(spec, spec.partitions.machines)
    return [ReadShareSpec(corpus=spec, number=share, machines=number, pod=spec.pod) for share in range(number)]


def token_shares(spec: ShardsSpec) -> list[ShareSpec]:
    """What each pod tokenizes of a corpus."""
    number = pods(spec, spec.machines)
    return [ShareSpec(number=share, machines=number, pod=spec.pod) for share in range(number)]


def corpus_of(spec: CorpusSpec, evaluated: dict[str, Rows]) -> Corpus:
    """A corpus, after the pods that read its partitions, if any; without the evaluated rows if its curation says so."""
    found, against = spec.as_found(), _against(spec, evaluated)
    read = _read(found, against)
    corpus: Corpus = (
        prepare_clean_corpus(spec=found, against=against)
        if against_evaluation(spec.curate)
        else prepare_corpus(spec=found)
    )
    return _after(read, corpus)


def new_of(spec: CorpusSpec, known: list[Corpus], evaluated: dict[str, Rows]) -> Corpus:
    """The documents that no known corpus has, in the same way."""
    found, against = spec.as_found(ask_hub=True), _against(spec, evaluated)
    read = _read(found, against)
    return _after(read, find_new(spec=found, known=known, against=against))


def _against(spec: CorpusSpec, evaluated: dict[str, Rows]) -> list[Rows]:
    return list(evaluated.values()) if against_evaluation(spec.curate) else []


def _read(spec: CorpusSpec, against: list[Rows]) -> list[StoredPartitions]:
    return [read_partitions(spec=share, against=against) for share in shares(spec)]


def _after(shares: Sequence[Artifact], made: A) -> A:
    """What is made when the shares are done."""
    for share in shares:
        share >> made  # type: ignore[operator]  # promises, while a DAG is compiled
    return made


def shards_of(spec: ShardsSpec, corpus: Corpus, tokenizer: Tokenizer) -> TokenizedCorpus:
    """A corpus' tokens, after the pods that tokenize its files, if any."""
    encoded = [encode_partitions(spec=share, corpus=corpus, tokenizer=tokenizer) for share in token_shares(spec)]
    shards: TokenizedCorpus = tokenize(spec=spec, corpus=corpus, tokenizer=tokenizer)
    return _after(encoded, shards)
