"""Execute a job: fetch its inputs, start its engine, tracked, and store its artifact."""

import shlex
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from baton.infra.flyte.hooks import ignored_outputs
from baton.infra.pod import this_pod
from baton.infra.pod_spec import PodSpec, in_bytes
from baton.infra.process.launch import EngineFailed, run_engine, sigterm_as_exit
from baton.infra.process.limits import MIB
from baton.infra.process.torchrun_env import Node, this_node
from baton.infra.storage.buckets import is_bucket
from baton.infra.tracking.record import tracked
from baton.tasks.artifacts import shown
from baton.tasks.core.deaths import earlier_death, note_death
from baton.tasks.core.inputs import side_by_side, view, views_of
from baton.tasks.core.manifest import ALL, read_manifest
from baton.tasks.core.offsite import Offsite
from baton.tasks.core.spec import Spec, StageSpec
from baton.tasks.finished import show
from baton.tasks.stage_job import NODE_0, A, StageJob, produced


def execute(job: StageJob[A]) -> A:
    """Run the job's engine and return the artifact that it made. A node that is not the first raises flytekit's
    exception for ignored outputs at the end. Raises EngineFailed, ArtifactError, StorageError, NotPlaced."""
    request = _request(job)
    launch, remote = job.launch, job.remote
    if this_node(launch.nodes, launch.helpers).rank:
        _start(job, request)
        raise ignored_outputs(NODE_0)
    node_0 = Node(nodes=launch.nodes, address="MASTER_ADDR")
    command = shlex.join(["python", *job.engine.command(job.folder, launch.processes, node_0)[1:]])
    with (
        sigterm_as_exit(),
        tracked(job.title, job.folder, spec=job.spec_json(), inputs=job.parents, command=command) as record,
    ):
        if remote:
            remote.check_memory()
        with _planned_memory_named(job.title, job.spec, remote), remote.sending() if remote else nullcontext():
            output = _start(job, request)
        shutil.rmtree(views_of(job.folder), ignore_errors=True)
        artifact = job.artifact_type.from_directory(output)
        place = remote.finish(artifact.digest) if remote else str(output)
        facts = read_manifest(output).fields
        record.log_output(artifact.kind, artifact.digest, facts, shown(artifact.kind, facts))
    produced.add(artifact.digest)
    _draw_deck(job.title, output)
    return artifact.at(place)


def _request(job: StageJob[A]) -> dict[str, Any]:
    """The job's spec.json."""
    return {
        "stage": job.engine.stage,
        "title": job.title,
        "kind": job.artifact_type.kind,
        "spec": job.spec.model_dump(mode="json", exclude={"placement": {"setup"}}),  # setup may contain secrets
        "storage": job.remote.storage if job.remote else None,
        "inputs": _fetched(job),
    }


def _fetched(job: StageJob[A]) -> dict[str, dict[str, Any]]:
    """The views of the inputs, as the fields of Input, fetched unless the engine does so. Those of which a few files
    are needed may be many: they are fetched side by side."""

    def fetched(name: str) -> dict[str, Any]:
        item, files, by_engine = job.inputs[name], job.reads.patterns(name), job.reads.is_on_demand(name)
        origin = "" if by_engine and is_bucket(item.place) else str(item.local(files))
        path = origin if by_engine else str(view(Path(origin), views_of(job.folder) / name, files))
        source = {"path": path, "digest": item.digest, "place": item.place, "files": files, "origin": origin}
        source["identity"] = item.identity
        return source | {"implied": True} if name in job.reads.implied else source

    in_part = side_by_side(fetched, [name for name in job.inputs if job.reads.patterns(name) != ALL])
    return {name: in_part.get(name) or fetched(name) for name in job.inputs}


def _start(job: StageJob[A], request: dict[str, Any]) -> Path:
    """Start the engine on this node and follow it to its end; returns its output. How it died is noted for the next
    start."""
    launch = job.launch
    node = this_node(launch.nodes, launch.helpers).rank
    try:
        return run_engine(
            job.engine, job.folder, request, title=job.title, processes=launch.processes, nodes=launch.nodes,
            helpers=launch.helpers, max_restarts=launch.max_restarts, hang_timeout_s=launch.hang_timeout_s,
            died=earlier_death(job.folder, job.remote, node), share_folder=job.remote is None,
        )  # fmt: skip
    except EngineFailed as error:
        if error.death:
            note_death(error.death, job.folder, job.remote, node)
        raise


@contextmanager
def _planned_memory_named(title: str, spec: Spec, remote: Offsite | None) -> Iterator[None]:
    """Raise EngineFailed with a way out if the body's engine was killed for memory; a retry of this
    pod reports it too."""
    try:
        yield
    except EngineFailed as error:
        if error.memory_mib is None:
            raise
        known = _memory_of(spec.pod) if this_pod() and isinstance(spec, StageSpec) and spec.pod else []
        fix = f"Set pod.resources.memory of {title} in the recipe" if this_pod() else "Use a machine with more memory"
        message = f"{'; '.join([error.message.rstrip(), *known])}. {fix}, or make batches or the model smaller"
        if remote:
            remote.note_memory(message, error.memory_mib)
        raise EngineFailed(message, memory_mib=error.memory_mib) from error


def _memory_of(pod: PodSpec) -> list[str]:
    """The memory that the plan estimates, and that the recipe sets in its place."""
    asked, planned = pod.resources.memory, pod.planned_memory
    named = {"the recipe sets": asked if asked != planned else None, "the plan's estimate is": planned}
    return [f"{words} {in_bytes(memory) / MIB:,.0f} MiB" for words, memory in named.items() if memory]


def _draw_deck(title: str, output: Path) -> None:
    from baton.tasks.pages.deck import stage_page  # Jinja2: not on the path of --help

    show(title, stage_page(output))
