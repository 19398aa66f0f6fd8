"""Run a stage's engine on its inputs: tracked, retried, finished work is reused."""

import shlex
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from contextvars import copy_context
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from infra.flyte.hooks import add_deck, ignored_outputs, retried_by_flyte
from infra.paths import located
from infra.pod import this_pod
from infra.pod_spec import PodSpec, in_bytes
from infra.process.launch import Engine, EngineFailed, is_finished, job_directory, run_engine, sigterm_as_exit
from infra.process.limits import MIB
from infra.process.torchrun_env import Node, NotPlaced, is_first_node, this_node
from infra.progress import say
from infra.storage.buckets import StorageError, is_bucket
from infra.tracking.execution import execution_id
from infra.tracking.machine import lineage_page
from infra.tracking.record import note_cached, tracked
from tasks.artifacts import Artifact, shown
from tasks.cached_stages import note_upstream
from tasks.core import lacking
from tasks.core.called import called
from tasks.core.deaths import earlier_death, note_death
from tasks.core.earlier import has_result_of
from tasks.core.inputs import input_key, view, views_of
from tasks.core.manifest import ALL, MANIFEST, ArtifactError, Manifest, read_manifest, remove, verify
from tasks.core.offsite import Offsite, offsite
from tasks.core.spec import Spec, StageSpec
from tasks.models.adapter_base import BASE
from tasks.models.artifact import HFModel

A = TypeVar("A", bound=Artifact)
T = TypeVar("T")

FETCHES = 8  # inputs at a time
NODE_0 = "node 0 returns the result"


# digests of artifacts from stages of this process, new or finished earlier, as opposed to those from Flyte's cache
produced: set[str] = set()


def restored(artifact: A) -> A:
    """The artifact; a new one if its files were gone: recomputed on a GPU, it may differ."""
    return artifact.from_place(located(artifact.place)) if lacking.restore(artifact.place) else artifact


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
    processes: int | None = None,
    nodes: int = 1,
    helpers: int = 0,
    max_restarts: int = 0,
    hang_timeout_s: float | None = None,
    files: Mapping[str, Sequence[str]] = MappingProxyType({}),
    checks: Mapping[str, Sequence[str]] = MappingProxyType({}),
    on_demand: str = "",
    implied: Collection[str] = (),
    **inputs: Artifact | Sequence[Artifact] | Mapping[str, Artifact],
) -> A:
    """Run a stage's engine on its inputs, tracked, and return the artifact that it made.

    `title` tells apart the uses of one engine; a call of a DAG has its own title (workflows/dag/call.py). `processes`
    starts it with torchrun, on each of `nodes` machines, and `helpers` more run the engine's helper; `max_restarts` and
    `hang_timeout_s` are those of run_engine. A list of artifacts, `more=[…]`, becomes the inputs more.0, more.1, …, a
    mapping, `parts={…}`, the inputs parts.corpus, parts.tokenizer, … (`Job.names` lists them). `files` has patterns of
    the files that the engine needs of such an input, list or item of a list (none: the manifest alone); others are
    neither fetched nor verified. Those of the record are given only if they are named, here or in `checks`
    (tasks/core/inputs.py). `on_demand` names an input that the engine itself fetches from storage, as far as it needs
    it. `implied` names inputs that are ancestors of others, and are not recorded as the artifact's parents. In a pod,
    the artifact and its checkpoints are in storage (tasks/core/offsite.py). An artifact found there, or finished in the
    job directory, is recorded as cached, unless the engine repeats.
    Raises EngineFailed, ArtifactError, StorageError, FlyteRecoverableException.
    """
    title = called().title or title or engine.stage
    named = {name: restored(artifact) for name, artifact in _flat(inputs).items()}
    if this_pod() and called().upstream:
        note_upstream(named.values(), called().upstream)
    groups = {name: name.partition(".")[0] for name in named}
    needed = {name: tuple(files.get(name) or files.get(group, ALL)) for name, group in groups.items()}
    keys = _side_by_side(lambda name: input_key(named[name].key, named[name].place, needed[name]), named)
    patterns = {name: (*needed[name], *checks.get(group, ())) for name, group in groups.items()}
    parents = {name: artifact.digest for name, artifact in named.items() if name not in implied}
    job_dir = _job_directory(engine, spec.identity(), keys, named)
    remote, is_first = offsite(job_dir), is_first_node()
    if remote and helpers + nodes > 1 and (helpers or processes is None):
        raise NotPlaced(
            f"{title}: its {nodes + helpers} machines work through files in one folder, and here they share none but "
            f"{remote.storage}: set placement.storage to a folder that they share, or use one machine"
        )
    _drop_damaged(job_dir / "output")
    spec_json = spec.model_dump(mode="json")
    reuse = partial(_reuse, title, artifact_type, spec_json, parents)
    if remote and (stored := remote.resume() if is_first else remote.result()) and not engine.repeats:
        if not is_first:
            raise ignored_outputs(NODE_0)
        return reuse(*stored)
    request = {
        "stage": engine.stage,
        "title": title,
        "kind": artifact_type.kind,
        "spec": spec.model_dump(mode="json", exclude={"placement": {"setup"}}),  # setup may contain secrets
        "storage": remote.storage if remote else None,
        "inputs": _fetched(job_dir, named, patterns, on_demand, implied),
    }
    command = shlex.join(["python", *engine.command(job_dir, processes, Node(nodes=nodes, address="MASTER_ADDR"))[1:]])
    node = this_node(nodes, helpers).rank

    def start() -> Path:
        try:
            return run_engine(
                engine, job_dir, request, title=title, processes=processes, nodes=nodes, helpers=helpers,
                max_restarts=max_restarts, hang_timeout_s=hang_timeout_s, died=earlier_death(job_dir, remote, node),
                share_folder=remote is None,
            )  # fmt: skip
        except EngineFailed as error:
            if error.death:
                note_death(error.death, job_dir, remote, node)
            raise

    if node:
        start()
        raise ignored_outputs(NODE_0)
    if not remote and is_finished(job_dir) and not engine.repeats:
        shutil.rmtree(views_of(job_dir), ignore_errors=True)
        return reuse(str(job_dir / "output"), read_manifest(job_dir / "output"), job_dir)
    with sigterm_as_exit(), tracked(title, job_dir, spec=spec_json, inputs=parents, command=command) as record:
        if remote:
            remote.check_memory()
        with _planned_memory_named(title, spec, remote), remote.sending() if remote else nullcontext():
            output = start()
        shutil.rmtree(views_of(job_dir), ignore_errors=True)
        artifact = artifact_type.from_directory(output)
        place = remote.finish(artifact.digest) if remote else str(output)
        record.log_output(
            artifact.kind, artifact.digest, facts := read_manifest(output).fields, shown(artifact.kind, facts)
        )
    produced.add(artifact.digest)
    _draw_deck(title, output)
    return artifact.at(place)


def _job_directory(
    engine: Engine, identity: dict[str, Any], keys: Mapping[str, str], inputs: Mapping[str, Artifact]
) -> Path:
    """The job's folder, or that in which an earlier version has left the same result."""
    digests = {name: artifact.digest for name, artifact in inputs.items()}
    job_dir, earlier = job_directory(engine, identity, dict(keys)), job_directory(engine, identity, digests)
    if job_dir == earlier or job_dir.exists() or engine.repeats:
        return job_dir
    return earlier if has_result_of(earlier, digests, lambda name: inputs[name].manifest()) else job_dir


def _fetched(
    job_dir: Path,
    named: Mapping[str, Artifact],
    patterns: Mapping[str, Sequence[str]],
    on_demand: str,
    implied: Collection[str],
) -> dict[str, dict[str, Any]]:
    """The views of the inputs, as the fields of Input, fetched unless the engine does so. Those of which a few files
    are needed may be many: they are fetched side by side."""

    def fetched(name: str) -> dict[str, Any]:
        item, files, by_engine = named[name], patterns[name], name.partition(".")[0] == on_demand
        origin = "" if by_engine and is_bucket(item.place) else str(item.local(files))
        path = origin if by_engine else str(view(Path(origin), views_of(job_dir) / name, files))
        source = {"path": path, "digest": item.digest, "place": item.place, "files": files, "origin": origin}
        source["identity"] = item.identity
        return source | {"implied": True} if name in implied else source

    in_part = _side_by_side(fetched, [name for name in named if patterns[name] != ALL])
    return {name: in_part.get(name) or fetched(name) for name in named}


def _side_by_side(function: Callable[[str], T], names: Iterable[str]) -> dict[str, T]:
    """The results by name."""
    pool = ThreadPoolExecutor(FETCHES, thread_name_prefix="inputs")
    try:  # with a copy of the context, which has Flyte's access to storage
        pending = {name: pool.submit(copy_context().run, function, name) for name in names}
        return {name: future.result() for name, future in pending.items()}
    finally:
        pool.shutdown(cancel_futures=True)


@contextmanager
def _planned_memory_named(title: str, spec: Spec, remote: Offsite | None) -> Iterator[None]:
    """Raise EngineFailed with a way out if the body's engine was killed for memory; a retry of this pod is told."""
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


def _reuse(
    title: str,
    artifact_type: type[A],
    spec: dict[str, Any],
    inputs: dict[str, str],
    place: str,
    manifest: Manifest,
    job_dir: Path | None = None,
) -> A:
    """The artifact that another run of the same job has made, recorded as cached."""
    facts = manifest.fields
    note_cached(
        title, artifact_type.kind, manifest.digest, facts,
        spec=spec, inputs=inputs, job_dir=job_dir, shown=shown(artifact_type.kind, facts),
    )  # fmt: skip
    produced.add(manifest.digest)
    say(f"✓ {title:<14} found in {place}")
    _show(title, f"<p>{artifact_type.kind} {manifest.digest} was found in {place}</p>")
    return artifact_type.from_place(place)


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


def _drop_damaged(output: Path) -> None:
    """Remove a finished job's output if its files do not match its manifest: it is not reused then."""
    if not (output / MANIFEST).exists():
        return
    try:
        verify(output)
    except ArtifactError as error:
        say(f"{error}\nMaking it again.")
        remove(output)


def _draw_deck(title: str, output: Path) -> None:
    from tasks.pages.deck import stage_page  # Jinja2: not on the path of --help

    _show(title, stage_page(output))


def _show(title: str, page: str) -> None:
    """Add the stage's deck to its page in Flyte's console."""
    lineage = lineage_page(execution_id())
    link = f'<p><a href="{lineage}">Lineage of this execution</a></p>' if lineage else ""
    add_deck(title, link + page)
