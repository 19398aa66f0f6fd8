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
from infra.flyte_hooks import POD_ENVIRONMENT, filter_pod_log
from infra.launch import Engine, EngineFailed, job_directory, run_engine, sigterm_as_exit
from infra.paths import quiet
from infra.placement.config import Placement
from infra.placement.storage import StorageError, address_of, is_bucket, storage_of
from infra.pod import this_pod
from infra.pod_spec import FAMILIES, PodSpec
from infra.pod_task import PodTask
from infra.progress import say
from infra.torchrun_env import Node, this_node
from infra.tracking.execution import execution_id, note_cached
from infra.tracking.machine import lineage_page
from infra.tracking.record import tracked
from tasks.adapted import BASE
from tasks.artifacts import Artifact, HFModel
from tasks.manifest import MANIFEST, ArtifactError, Manifest, remove, text_digest, verify
from tasks.offsite import offsite
from tasks.spec import Spec, StageSpec
from tasks.stored import check_sizes, send

A = TypeVar("A", bound=Artifact)

quiet()
filter_pod_log()

# digests of the artifacts that this process's stages made, here or elsewhere, as opposed to those from the cache
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
        promise = super().local_execute(ctx, **kwargs)
        stage = self.task_config.engine.stage
        try:
            artifact = self._intact(ctx, promise)
        except ArtifactError as error:
            say(f"{stage} is cached, but its files were changed or removed. {error}\nMaking it again.")
        else:
            if artifact.digest not in _made_here | _received:
                manifest, made = artifact.manifest(), Path(artifact.place)
                note_cached(
                    artifact.title(stage),
                    artifact.kind,
                    artifact.digest,
                    artifact.facts(),
                    spec=manifest.spec,
                    inputs=manifest.parents,
                    job_dir=made.parent if made.is_absolute() and made.name == "output" else None,  # else in a bucket
                )
                say(f"✓ {artifact.title(stage):<14} cached")
            return promise
        os.environ["FLYTE_LOCAL_CACHE_OVERWRITE"] = "true"  # Flyte's own switch; it has no argument for it
        try:
            return super().local_execute(ctx, **kwargs)
        finally:
            del os.environ["FLYTE_LOCAL_CACHE_OVERWRITE"]

    def _intact(self, ctx: FlyteContext, promise: Any) -> Artifact:
        """The promise's artifact, its files checked unless they were just made. Raises ArtifactError."""
        try:
            artifact = self._artifact(ctx, promise.val)
        except ValidationError as error:  # Flyte's directory type checks that it exists
            raise ArtifactError("Its directory is gone, or another version of Baton made it.") from error
        if artifact.digest not in _made_here:
            if is_bucket(artifact.place):  # the stage that reads its files checks them
                check_sizes(artifact.place, artifact.digest)
            else:
                verify(Path(artifact.place), artifact.digest)
        return artifact

    def _artifact(self, ctx: FlyteContext, literal: Any) -> Artifact:
        (python_type,) = self.python_interface.outputs.values()
        artifact: Artifact = TypeEngine.to_python_value(ctx, literal, python_type)
        return artifact


TaskPlugins.register_pythontask_plugin(Stage, StageTask)


def stage(
    engine: Engine, *, image: ImageSpec, cached: bool = True, pod: PodSpec | None = None
) -> Callable[[Callable[..., A]], Callable[..., A]]:
    """Make a Flyte task of a function that takes a spec and artifacts and returns one artifact.

    `cached=False` is for what belongs to one execution, like its report. `pod` has the default resources of its pod,
    over those of the image's family."""

    def decorate(function: Callable[..., A]) -> Callable[..., A]:
        hints = get_type_hints(function)
        made, kind = hints.pop("return"), hints["spec"]
        parameters = list(inspect.signature(function).parameters.values())

        @wraps(function)
        def whole(spec: Spec, how: str, **inputs: Any) -> A:
            return function(spec=spec.joined(json.loads(how)), **inputs)

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
            task_config=Stage(engine, (pod or PodSpec()).over(FAMILIES.get(image.name, PodSpec()))),
            container_image=image,
            environment=POD_ENVIRONMENT,
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


def _sent(value: Any, storage: str) -> Any:
    """Artifacts as they are in storage, sent there first if necessary; anything else unchanged."""
    if isinstance(value, HFModel) and value.base:
        value = value.with_base_at(send(value.base.place, value.base.digest, storage))
    if isinstance(value, Artifact):
        return value.at(send(value.place, value.digest, storage))
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
    storage (tasks/offsite.py), and what is found there is not made again. Raises EngineFailed, ArtifactError,
    StorageError, FlyteRecoverableException.
    """
    title = title or engine.stage
    named = _flat(inputs)
    digests = {name: artifact.digest for name, artifact in named.items()}
    job_dir = job_directory(engine, spec.identity(), digests)
    remote = offsite(job_dir)
    _drop_damaged(job_dir / "output")
    if remote and (found := remote.resume()):
        return _found(title, made, *found)
    request = {
        "stage": engine.stage,
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
    spec_json = spec.model_dump(mode="json")
    with sigterm_as_exit(), tracked(title, job_dir, spec=spec_json, inputs=digests, command=command) as record:
        with remote.sending() if remote else nullcontext():
            output = start(max_restarts=max_restarts, hang_timeout_s=hang_timeout_s)
        artifact = made.from_directory(output)
        place = remote.finish(artifact.digest) if remote else address_of(str(output))
        record.made(made.kind, artifact.digest, artifact.facts())
    _made_here.add(artifact.digest)
    _draw_deck(title, output)
    return artifact.at(place)


def _found(title: str, made: type[A], place: str, manifest: Manifest) -> A:
    """The artifact that another pod has made, recorded as cached."""
    note_cached(title, made.kind, manifest.digest, manifest.facts, spec=manifest.spec, inputs=manifest.parents)
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
