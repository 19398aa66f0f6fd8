"""Run a stage's engine on its inputs: a finished result is reused, else the engine is executed."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from baton.infra.flyte.hooks import retried_by_flyte
from baton.infra.flyte.options import current_options
from baton.infra.pod import this_pod
from baton.infra.process.launch import Engine, EngineFailed, Launch, job_directory
from baton.infra.process.torchrun_env import NotPlaced
from baton.infra.storage.buckets import StorageError
from baton.tasks.artifacts import Artifact
from baton.tasks.cached_stages import note_upstream
from baton.tasks.core.earlier import has_result, has_result_of
from baton.tasks.core.inputs import input_key, side_by_side
from baton.tasks.core.offsite import offsite
from baton.tasks.core.spec import Spec
from baton.tasks.execute import execute
from baton.tasks.finished import finished
from baton.tasks.models.adapter_base import BASE
from baton.tasks.models.artifact import HFModel
from baton.tasks.stage_job import A, Reads, StageJob
from baton.tasks.user_code.functions import earlier_identities

ALL_FILES, ALONE = Reads(), Launch()


@contextmanager
def retryable() -> Iterator[None]:
    """In a pod, raise transient errors as recoverable: Flyte retries as often as the stage allows."""
    try:
        yield
    except (EngineFailed, StorageError) as error:
        if error.curable and this_pod():
            raise retried_by_flyte(error) from error
        raise


@retryable()
def run(
    engine: Engine,
    artifact_type: type[A],
    spec: Spec,
    *,
    title: str | None = None,
    launch: Launch = ALONE,
    reads: Reads = ALL_FILES,
    **inputs: Artifact | Sequence[Artifact] | Mapping[str, Artifact],
) -> A:
    """Return the artifact that a stage's engine makes of its inputs: that of an earlier run of the same job, recorded
    as cached (tasks/finished.py), or a new one (tasks/execute.py).

    `title` distinguishes the uses of one engine; a call of a DAG has its own title (workflows/dag/call.py). A list of
    artifacts, `more=[…]`, becomes the inputs more.0, more.1, …, a mapping, `parts={…}`, the inputs parts.corpus,
    parts.tokenizer, … (`Job.names` lists them). In a pod, the artifact and its checkpoints are in storage
    (tasks/core/offsite.py). Raises EngineFailed, ArtifactError, StorageError, NotPlaced, FlyteRecoverableException.
    """
    named = _flat(inputs)
    options = current_options()
    if this_pod() and options.upstream:
        note_upstream(named.values(), options)
    keys = side_by_side(lambda name: input_key(named[name].key, named[name].place, reads.needed(name)), named)
    folder = _job_directory(engine, spec, keys, named)
    shown_as = options.title or title or engine.stage
    job = StageJob(shown_as, engine, artifact_type, spec, named, launch, reads, folder, offsite(folder))
    _check_machines(job)
    artifact = finished(job)
    return execute(job) if artifact is None else artifact


def _job_directory(engine: Engine, spec: Spec, keys: Mapping[str, str], inputs: Mapping[str, Artifact]) -> Path:
    """The job's folder, or that in which an earlier version has left the same result."""
    job_dir = job_directory(engine, spec.identity(), dict(keys))
    if job_dir.exists() or engine.repeats:
        return job_dir
    digests = {name: artifact.digest for name, artifact in inputs.items()}
    for identity in earlier_identities(spec):
        by_text = job_directory(engine, identity, dict(keys))
        if by_text != job_dir and has_result(by_text):
            return by_text
        by_digests = job_directory(engine, identity, digests)
        if by_digests != by_text and has_result_of(by_digests, digests, lambda name: inputs[name].manifest()):
            return by_digests
    return job_dir


def _check_machines(job: StageJob[A]) -> None:
    """Raise NotPlaced if the job's machines need a folder that they share, and have none."""
    nodes, helpers = job.launch.nodes, job.launch.helpers
    if job.remote and helpers + nodes > 1 and (helpers or job.launch.processes is None):
        raise NotPlaced(
            f"{job.title}: its {nodes + helpers} machines work through files in one folder, and here they share none "
            f"but {job.remote.storage}: set placement.storage to a folder that they share, or use one machine"
        )


def _flat(inputs: Mapping[str, Artifact | Sequence[Artifact] | Mapping[str, Artifact]]) -> dict[str, Artifact]:
    """Each artifact under a unique name, and the base of an adapter; an empty list adds none. Mappings are sorted by
    key, since on a cluster they arrive in any order."""
    flat: dict[str, Artifact] = {}
    for name, value in inputs.items():
        if isinstance(value, Artifact):
            flat[name] = value
            if isinstance(value, HFModel) and (base := value.base_model()):
                flat[f"{name}.{BASE}"] = base
        else:
            items = sorted(value.items()) if isinstance(value, Mapping) else enumerate(value)
            flat |= {f"{name}.{key}": artifact for key, artifact in items}
    return flat
