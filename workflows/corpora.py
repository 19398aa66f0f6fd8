"""The corpora of a DAG, and the rows that they must not contain.

On a Flyte cluster with `partitions.machines`, pods read a corpus' partitions first, side by side. They are nodes of the
DAG and not an array node (flytekit's `map_task`), which would run past the checks of a stage.
"""

from infra.pod import this_pod
from tasks.artifacts import Corpus, ReadPartitions, Rows
from tasks.data.curate_spec import against_evaluation
from tasks.data.spec import CorpusSpec, ShareSpec
from tasks.data.task import find_new, prepare_clean_corpus, prepare_corpus, read_partitions
from workflows.recipe import Recipe
from workflows.tuning import prepared


def evaluated_names(recipe: Recipe) -> list[str]:
    """The evaluated sets of rows, if a corpus is decontaminated against them."""
    corpora = [recipe.corpus, *recipe.more_corpora]
    needed = any(corpus and against_evaluation(corpus.curate) for corpus in corpora)
    return recipe.evaluate.sets() if recipe.evaluate and needed else []


def evaluated_first(recipe: Recipe) -> dict[str, Rows]:
    """These sets, prepared before the corpora."""
    return prepared(recipe, None, evaluated_names(recipe))


def shares(spec: CorpusSpec) -> list[ShareSpec]:
    """What each pod reads; none outside of a cluster, or where SkyPilot places the corpus."""
    machines = spec.partitions.machines
    if machines == 1 or spec.placement or this_pod() is None:
        return []
    return [ShareSpec(corpus=spec, number=number, machines=machines, pod=spec.pod) for number in range(machines)]


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


def _read(spec: CorpusSpec, against: list[Rows]) -> list[ReadPartitions]:
    return [read_partitions(spec=share, against=against) for share in shares(spec)]


def _after(read: list[ReadPartitions], corpus: Corpus) -> Corpus:
    for share in read:
        share >> corpus  # type: ignore[operator]  # promises, while a DAG is compiled
    return corpus
