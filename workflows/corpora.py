"""A corpus in a DAG: on a Flyte cluster with `partitions.machines`, pods read its partitions first, side by side.

They are nodes of the DAG and not an array node (flytekit's `map_task`), which would run past the checks of a stage and
could not be placed by SkyPilot.
"""

from infra.pod import this_pod
from tasks.artifacts import Corpus
from tasks.data.spec import CorpusSpec, ShareSpec
from tasks.data.task import prepare_corpus, read_partitions


def shares(spec: CorpusSpec) -> list[ShareSpec]:
    """What each pod reads; none outside of a cluster, or where SkyPilot places the corpus."""
    machines = spec.partitions.machines
    if machines == 1 or spec.placement or this_pod() is None:
        return []
    return [ShareSpec(corpus=spec, number=number, machines=machines, pod=spec.pod) for number in range(machines)]


def prepared(spec: CorpusSpec) -> Corpus:
    """The corpus, after the pods that read its partitions, if any."""
    found = spec.as_found()
    read = [read_partitions(spec=share) for share in shares(found)]
    corpus: Corpus = prepare_corpus(spec=found)
    for share in read:
        share >> corpus  # type: ignore[operator]  # promises, while a DAG is compiled
    return corpus
