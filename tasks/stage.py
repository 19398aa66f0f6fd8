"""What all stages share: image, caching, deck, and how the engine is run and tracked.

    @stage(ENGINE, image=images.TRAIN)
    def pretrain(spec: PretrainSpec, data: TokenizedCorpus) -> MegatronCheckpoint:
        return run(ENGINE, MegatronCheckpoint, spec, data=data)

A stage is served from Flyte's cache if its engine's version, its spec's identity and the *digests* of its inputs are
the same. Paths, machines, layouts and retries do not count: they are in an input of their own, `how`, which the cache
ignores.
"""

import inspect
import json
import os
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial, wraps
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_type_hints

from flytekit import Cache, Deck, HashMethod, ImageSpec, current_context, task
from flytekit.core.base_task import IgnoreOutputs
from flytekit.core.context_manager import FlyteContext, FlyteContextManager
from flytekit.core.promise import Promise
from flytekit.core.python_function_task import PythonFunctionTask
from flytekit.core.type_engine import TypeEngine, TypeTransformer
from flytekit.exceptions.user import FlyteRecoverableException
from flytekit.extend import TaskPlugins
from flytekit.extras.pydantic_transformer.transformer import PydanticTransformer
from flytekit.models.literals import LiteralMap
from flytekit.models.types import LiteralType
from pydantic import BaseModel, ValidationError

import tasks.cache  # noqa: F401 - replaces Flyte's local cache
from infra.errors import disk_errors_named
from infra.flyte_hooks import POD_ENVIRONMENT, filter_pod_log, sentence_first
from infra.launch import Engine, EngineFailed, is_finished, job_directory, run_engine, sigterm_as_exit
from infra.limits import MIB
from infra.paths import located, quiet
from infra.placement.config import Placement
from infra.placement.storage import StorageError, address_of, is_bucket, storage_of
from infra.pod import this_pod
from infra.pod_spec import FAMILIES, PodSpec, check_gpus, check_secrets, in_bytes, secrets_variable
from infra.pod_task import PodTask
from infra.progress import say
from infra.torchrun_env import Node, this_node
from infra.tracking.execution import execution_id, note_cached
from infra.tracking.machine import lineage_page
from infra.tracking.record import failure_recorded, tracked
from infra.tracking.relations import CONTAINS, relation
from tasks import lacking
from tasks.adapted import BASE
from tasks.artifacts import Artifact, HFModel
from tasks.manifest import MANIFEST, ArtifactError, Manifest, read_manifest, remove, text_digest, verify
from tasks.offsite import Offsite, offsite
from tasks.spec import Spec, StageSpec
from tasks.stored import check_sizes, send

A = TypeVar("A", bound=Artifact)

quiet()
filter_pod_log()
sentence_first()

# digests of the artifacts that this process's stages made or found finished, as opposed to those from Flyte's cache
_made_here: set[str] = set()
_received: set[str] = set()


class _NoFields(BaseModel):
    """A model whose Flyte type has no fields in its schema."""


class PlainModels(PydanticTransformer):
    """Specs and artifacts without their JSON schema, which Flyte's catalog makes part of a cache key: a changed
    description would run every stage again."""

    def __init__(self) -> None:
        standard = PydanticTransformer()
        TypeTransformer.__init__(self, standard.name, Artifact, enable_type_assertions=False)
        self._plain = standard.get_literal_type(_NoFields)

    def get_literal_type(self, t: type[BaseModel]) -> LiteralType:
        return LiteralType(simple=self._plain.simple, annotation=self._plain.annotation)


TypeEngine.register(PlainModels(), additional_types=[StageSpec])


@dataclass(frozen=True)
class Stage:
    """Marks a Flyte task as a stage (its `task_config`)."""

    engine: Engine
    pod: PodSpec  # its pod's resources unless the recipe has them
    hands_on: bool = False
    describes: tuple[str, ...] = ()


class StageTask(PodTask, PythonFunctionTask[Stage]):
    """A Flyte task that runs here or where its spec's placement says. A local cache hit counts only while its files
    are intact, and is recorded in the execution that it serves."""

    def __call__(self, **inputs: Any) -> Any:
        return super().__call__(**_apart(inputs))

    def execute(self, **inputs: Any) -> Any:
        """Split the inputs here too: a spec that was a promise in `__call__` is not split yet."""
        return super().execute(**_apart(inputs))

    def sent(self, placement: Placement, inputs: dict[str, Any]) -> dict[str, Any]:
        storage = storage_of(placement.storage)
        return {name: _sent(value, storage) for name, value in inputs.items()}

    def received(self, outputs: LiteralMap) -> None:
        (literal,) = outputs.literals.values()
        _received.add(self._artifact(FlyteContextManager.current_context(), literal).digest)

    def local_execute(self, ctx: FlyteContext, **kwargs: Any) -> Any:
        with disk_errors_named():
            return self._execute_here(ctx, **kwargs)

    def _execute_here(self, ctx: FlyteContext, **kwargs: Any) -> Any:
        if self.task_config.hands_on:
            return self._again(ctx, **kwargs)
        promise = super().local_execute(ctx, **kwargs)
        stage = self.task_config.engine.stage
        try:
            with lacking.tolerated():
                artifact = self._artifact(ctx, promise.val)
            if artifact.digest not in _made_here:
                _check(artifact)
        except (ArtifactError, ValidationError) as error:  # the latter: another version of Baton made it
            say(f"{stage} is cached, but its files were changed or removed. {error}\nMaking it again.")
            return self._again(ctx, **kwargs)
        gone = artifact.digest not in _made_here and is_gone(artifact.place)
        lacking.made(artifact.digest, _made_from(artifact, kwargs), there=not gone)
        if artifact.digest not in _made_here | _received:
            self._note(artifact)
            say(f"✓ {artifact.title(stage):<14} cached{', its files are gone' if gone else ''}")
        if gone:
            lacking.note(artifact.place, partial(self._again, ctx, **kwargs))
        return promise

    def _note(self, artifact: Artifact) -> None:
        """Record an artifact from the cache with what made it, as far as that is there."""
        try:
            manifest = artifact.manifest()
        except ArtifactError:
            manifest = Manifest(artifact.kind, artifact.digest, {}, {})
        folder = Path(artifact.place)
        note_cached(
            artifact.title(self.task_config.engine.stage),
            artifact.kind,
            artifact.digest,
            artifact.facts(),
            spec=manifest.spec,
            inputs=manifest.parents,
            job_dir=folder.parent if folder.is_absolute() and folder.name == "output" else None,  # else in a bucket
        )

    def _again(self, ctx: FlyteContext, **kwargs: Any) -> Any:
        """Execute it whatever Flyte's cache has."""
        os.environ["FLYTE_LOCAL_CACHE_OVERWRITE"] = "true"  # Flyte's own switch; it has no argument for it
        try:
            return super().local_execute(ctx, **kwargs)
        finally:
            os.environ.pop("FLYTE_LOCAL_CACHE_OVERWRITE", None)  # an input that was made again has removed it

    def _artifact(self, ctx: FlyteContext, literal: Any) -> Artifact:
        (python_type,) = self.python_interface.outputs.values()
        artifact: Artifact = TypeEngine.to_python_value(ctx, literal, python_type)
        return artifact


def _check(artifact: Artifact) -> None:
    """Check an artifact's files, unless they are gone. Raises ArtifactError."""
    if is_bucket(artifact.place):  # the stage that reads its files checks them
        check_sizes(artifact.place, artifact.digest)
    elif not is_gone(artifact.place):
        verify(Path(artifact.place), artifact.digest)


def is_gone(place: str) -> bool:
    """Whether a folder, its manifest, or some of its files were removed."""
    if is_bucket(place):
        return False
    try:
        return any(not (Path(place) / name).exists() for name in read_manifest(Path(place)).files)
    except ArtifactError:
        return not (Path(place) / MANIFEST).exists()


def _made_from(artifact: Artifact, inputs: dict[str, Any]) -> list[str]:
    """The digests of the inputs, Flyte's promises or artifacts, that an artifact was made from."""
    digests = {name: [*_digests(value)] for name, value in inputs.items()}
    one_each = {name: of[0] for name, of in digests.items() if of}
    related = {name: relation(artifact.kind, artifact.digest, name, one_each) for name in one_each}
    return [digest for name, kind in related.items() if kind in CONTAINS for digest in digests[name]]


def _digests(value: Any) -> Iterator[str]:
    if isinstance(value, Artifact):
        yield value.digest
    elif isinstance(value, list | dict):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _digests(item)
    elif isinstance(value, Promise) and value.is_ready and getattr(value.val, "hash", None):
        yield value.val.hash


TaskPlugins.register_pythontask_plugin(Stage, StageTask)


def stage(
    engine: Engine,
    *,
    image: ImageSpec,
    cached: bool = True,
    pod: PodSpec | None = None,
    hands_on: bool = False,
    describes: tuple[str, ...] = (),
) -> Callable[[Callable[..., A]], Callable[..., A]]:
    """Make a Flyte task of a function that takes a spec and artifacts and returns one artifact.

    `cached=False` is for what belongs to one execution, like its report. `pod` has the default resources of its pod,
    over those of the image's family. `hands_on`: it returns one of its inputs. What it decided is not in Flyte's local
    cache then, so it executes every time, and finds its finished job. `describes`: the lists and mappings of artifacts
    that it only tells of; those whose files are gone and that nothing needs are left out."""

    def decorate(function: Callable[..., A]) -> Callable[..., A]:
        hints = get_type_hints(function)
        made, kind = hints.pop("return"), hints["spec"]
        default = (pod or PodSpec()).over(FAMILIES.get(image.name, PodSpec()))
        parameters = list(inspect.signature(function).parameters.values())

        @wraps(function)
        def whole(spec: Spec, how: str, **inputs: Any) -> A:
            with failure_recorded(engine.stage), disk_errors_named():
                promised = PodSpec.model_validate(json.loads(how).get("pod") or {}).over(default)
                check_secrets(promised.secrets)
                check_gpus(promised.resources)
                told = {name: _settled(inputs[name]) for name in describes if name in inputs}
                return function(spec=spec.joined(json.loads(how)), **inputs | told)

        # the digest is the artifact's identity in the cache keys of the stages that follow
        whole.__annotations__ = {
            **hints,
            "spec": Annotated[kind, HashMethod(_identity_digest)],
            "how": str,
            "return": Annotated[made, HashMethod(lambda artifact: artifact.digest)],
        }
        how = inspect.Parameter("how", inspect.Parameter.KEYWORD_ONLY, default="{}")
        whole.__signature__ = inspect.Signature([*parameters, how])  # type: ignore[attr-defined]
        made_task: Callable[..., A] = task(
            whole,
            task_config=Stage(engine, default, hands_on, describes),
            container_image=image,
            environment=POD_ENVIRONMENT | secrets_variable(),
            cache=Cache(version=engine.version, ignored_inputs=("how",)) if cached else False,
            enable_deck=True,
            deck_fields=(),
        )
        return made_task

    return decorate


def _apart(inputs: dict[str, Any]) -> dict[str, Any]:
    """Split the inputs: `spec` keeps the fields of its identity, `how` gets the others."""
    spec, how = inputs["spec"], json.loads(inputs.get("how") or "{}")
    if isinstance(spec, Spec):
        spec, how = spec.joined(how).apart()
    return inputs | {"spec": spec, "how": json.dumps(how, sort_keys=True)}


def _settled(value: Any) -> Any:
    """A list or a mapping of artifacts without those whose files are gone and that nothing needs."""
    if isinstance(value, dict):
        return {name: item for name, item in value.items() if _is_told(item)}
    return [item for item in value if _is_told(item)] if isinstance(value, list) else value


def _is_told(artifact: Artifact) -> bool:
    if not (lacking.is_lacking(artifact.place) and lacking.is_needless(artifact.digest)):
        return True
    what = f"{artifact.kind.replace('_', ' ')} {artifact.digest[:12]}"
    say(f"the {what} is left out: its files are gone from {artifact.place}, and what was made from it is there")
    return False


def _restored(artifact: A) -> A:
    """The artifact; if its files were gone, as it was made again: on a GPU it may be another."""
    return artifact.from_place(located(artifact.place)) if lacking.restore(artifact.place) else artifact


def _sent(value: Any, storage: str) -> Any:
    """Artifacts and a spec's files as they are in storage, sent there first if necessary."""
    if isinstance(value, Artifact):
        value = _restored(value)
    if isinstance(value, HFModel) and value.base:
        value = value.with_base_at(send(value.base.place, value.base.digest, storage))
    if isinstance(value, Artifact):
        return value.at(send(value.place, value.digest, storage))
    if isinstance(value, StageSpec):
        return value.sent(storage)
    if isinstance(value, dict):
        return {name: _sent(item, storage) for name, item in value.items()}
    return [_sent(item, storage) for item in value] if isinstance(value, list) else value


def _identity_digest(spec: Spec) -> str:
    return text_digest(json.dumps(spec.identity(), sort_keys=True))


@contextmanager
def retryable() -> Iterator[None]:
    """In a pod, raise transient errors as recoverable: Flyte retries as often as the stage allows."""
    try:
        yield
    except (EngineFailed, StorageError) as error:
        if error.curable and this_pod():
            raise FlyteRecoverableException(str(error)) from error
        raise


@retryable()
def run(
    engine: Engine,
    made: type[A],
    spec: Spec,
    *,
    title: str | None = None,
    processes: int | None = None,
    nodes: int = 1,
    helpers: int = 0,
    max_restarts: int = 0,
    hang_timeout_s: float | None = None,
    **inputs: Artifact | Sequence[Artifact] | Mapping[str, Artifact],
) -> A:
    """Run a stage's engine on its inputs, tracked, and return the artifact that it made.

    `title` tells apart the uses of one engine (evaluate base, evaluate sft); `processes` starts it with torchrun, on
    each of `nodes` machines, and `helpers` more run the engine's helper; `max_restarts` and `hang_timeout_s` are those
    of run_engine. A list of artifacts, `more=[…]`, becomes the inputs more.0, more.1, …, a mapping, `parts={…}`, the
    inputs parts.corpus, parts.tokenizer, … (`Job.names` lists them). In a pod, the artifact and its checkpoints are in
    storage (tasks/offsite.py). What is found there, or finished in the job directory, is recorded as cached. Raises
    EngineFailed, ArtifactError, StorageError, FlyteRecoverableException.
    """
    title = title or engine.stage
    named = {name: _restored(artifact) for name, artifact in _flat(inputs).items()}
    digests = {name: artifact.digest for name, artifact in named.items()}
    job_dir = job_directory(engine, spec.identity(), digests)
    remote = offsite(job_dir)
    _drop_damaged(job_dir / "output")
    spec_json = spec.model_dump(mode="json")
    found = partial(_found, title, made, spec_json, digests)
    if remote and (stored := remote.resume()):
        return found(*stored)
    request = {
        "stage": engine.stage,
        "title": title,
        "kind": made.kind,
        "spec": spec.model_dump(mode="json", exclude={"placement": {"setup"}}),  # setup may contain secrets
        "storage": remote.storage if remote else None,
        "inputs": {
            name: {"path": str(item.local()), "digest": item.digest, "place": item.place}
            for name, item in named.items()
        },
    }
    command = shlex.join(["python", *engine.command(job_dir, processes, Node(nodes=nodes, address="MASTER_ADDR"))[1:]])
    start = partial(
        run_engine, engine, job_dir, request, title=title, processes=processes, nodes=nodes, helpers=helpers
    )
    if this_node(nodes, helpers).rank:
        start(max_restarts=max_restarts, hang_timeout_s=hang_timeout_s)
        raise IgnoreOutputs("node 0 returns the result")
    if not remote and is_finished(job_dir):
        return found(address_of(str(job_dir / "output")), read_manifest(job_dir / "output"), job_dir)
    with sigterm_as_exit(), tracked(title, job_dir, spec=spec_json, inputs=digests, command=command) as record:
        if remote:
            remote.check_memory()
        with _planned_memory_named(title, spec, remote), remote.sending() if remote else nullcontext():
            output = start(max_restarts=max_restarts, hang_timeout_s=hang_timeout_s)
        artifact = made.from_directory(output)
        place = remote.finish(artifact.digest) if remote else address_of(str(output))
        record.made(made.kind, artifact.digest, artifact.facts())
    _made_here.add(artifact.digest)
    _draw_deck(title, output)
    return artifact.at(place)


@contextmanager
def _planned_memory_named(title: str, spec: Spec, remote: Offsite | None) -> Iterator[None]:
    """Raise EngineFailed with a way out if the body's engine was killed for memory; a retry of this pod is told."""
    try:
        yield
    except EngineFailed as error:
        if error.memory_mib is None:
            raise
        planned = spec.pod.resources.memory if isinstance(spec, StageSpec) and spec.pod else None
        plan = f"; the stage was planned with {in_bytes(planned) / MIB:,.0f} MiB" if planned else ""
        way_out = (
            f"Set pod.resources.memory of {title} in the recipe" if this_pod() else "Use a machine with more memory"
        )
        message = f"{error.message.rstrip()}{plan}. {way_out}, or make batches or the model smaller"
        if remote:
            remote.note_memory(message, error.memory_mib)
        raise EngineFailed(message, memory_mib=error.memory_mib) from error


def _found(
    title: str,
    made: type[A],
    spec: dict[str, Any],
    inputs: dict[str, str],
    place: str,
    manifest: Manifest,
    job_dir: Path | None = None,
) -> A:
    """The artifact that another run of the same job has made, recorded as cached."""
    note_cached(title, made.kind, manifest.digest, manifest.facts, spec=spec, inputs=inputs, job_dir=job_dir)
    _made_here.add(manifest.digest)
    say(f"✓ {title:<14} found in {place}")
    _show(title, f"<p>{made.kind} {manifest.digest} was found in {place}</p>")
    return made.from_place(place)


def _flat(inputs: Mapping[str, Artifact | Sequence[Artifact] | Mapping[str, Artifact]]) -> dict[str, Artifact]:
    """Each artifact by a name of its own, and the base of an adapter; an empty list adds none. Mappings are sorted by
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
    current_context().decks.append(Deck(title, link + page))
