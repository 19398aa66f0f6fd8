"""The corpora of a DAG, the rows that they must not contain, and their tokens.

On a Flyte cluster with `machines`, pods read a corpus' partitions, or tokenize them, first and side by side. They are
nodes of the DAG and not an array node (flytekit's `map_task`), which would run past the checks of a stage. The DAG
grows with the machines, never with the partitions.
"""

from baton.infra.pod import this_pod
from baton.tasks.core.spec import StageSpec
from baton.tasks.data.curate_spec import against_evaluation
from baton.tasks.data.spec import CorpusSpec, ReadShareSpec, ShardsSpec, ShareSpec
from baton.workflows.dag.call import Calls
from baton.workflows.recipe import Recipe


def evaluated_names(recipe: Recipe) -> list[str]:
    """The evaluated sets of rows, if a corpus is decontaminated against them: they are prepared before it."""
    corpora = [recipe.corpus, *recipe.more_corpora]
    needed = any(corpus and against_evaluation(corpus.curate) for corpus in corpora)
    return recipe.evaluate.sets() if recipe.evaluate and needed else []


def pods(spec: StageSpec, machines: int) -> int:
    """Return how many pods share a stage's work; 0 outside of a cluster, or where SkyPilot places the stage."""
    return 0 if machines == 1 or spec.placement or this_pod() is None else machines


def corpus_of(dag: Calls, title: str, spec: CorpusSpec, evaluated: dict[str, str]) -> str:
    """A corpus, after the pods that read its partitions, if any; without the evaluated rows if its curation says so."""
    if not against_evaluation(spec.curate):
        return dag.add(title, "prepare_corpus", spec, after=_read(dag, title, spec, []))
    against = [*evaluated.values()]
    return dag.add(title, "prepare_clean_corpus", spec, after=_read(dag, title, spec, against), against=against)


def new_of(dag: Calls, spec: CorpusSpec, known: list[str], evaluated: dict[str, str]) -> str:
    """The documents that no known corpus has, in the same way."""
    against = [*evaluated.values()] if against_evaluation(spec.curate) else []
    after = _read(dag, "increment", spec, against)
    return dag.add("increment", "find_new", spec, after=after, known=known, against=against)


def _read(dag: Calls, title: str, spec: CorpusSpec, against: list[str]) -> list[str]:
    machines = pods(spec, spec.partitions.machines)
    shares = [ReadShareSpec(corpus=spec, number=share, machines=machines, pod=spec.pod) for share in range(machines)]
    return [dag.add(f"{title}-share-{each.number}", "read_partitions", each, against=against) for each in shares]


def shards_of(dag: Calls, title: str, spec: ShardsSpec, corpus: str, tokenizer: str) -> str:
    """A corpus' tokens, after the pods that tokenize its files, if any."""
    machines = pods(spec, spec.machines)
    shares = [ShareSpec(number=share, machines=machines, pod=spec.pod) for share in range(machines)]
    after = [
        dag.add(f"{title}-share-{each.number}", "encode_partitions", each, corpus=corpus, tokenizer=tokenizer)
        for each in shares
    ]
    return dag.add(title, "tokenize", spec, after=after, corpus=corpus, tokenizer=tokenizer)
