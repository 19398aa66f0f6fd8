"""What every stage has in common, said once: its image, its cache rule, its deck, and the way its
engine is run and tracked.

    @stage(ENGINE, image=images.TRAIN)
    def pretrain(spec: PretrainSpec, data: TokenizedCorpus) -> MegatronCheckpoint:
        return run(ENGINE, MegatronCheckpoint, spec, data=data)

The cache rule: a stage is served from Flyte's cache when its engine's version, its spec's identity
and the *digests* of its inputs are the same. Paths, machines, layouts and retries never count: Flyte has
them in an input of their own, `how`, which it ignores.
"""

import inspect
import json
import os
import shlex
from collections.abc import Callable, Iterator, Sequence
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

import tasks.cache  # noqa: F401 - where Flyte's is, and its errors
from infra.errors import disk_errors_named
from infra.home import quiet
from infra.launch import Engine, EngineFailed, Survival, job_directory, run_engine, sigterm_as_exit
from infra.node import Node, this_node
from infra.placement.config import Placement
from infra.placement.storage import StorageError, address_of, is_bucket, storage_of
from infra.pod import this_pod
from infra.pod_log import ENVIRONMENT, quiet_end
from infra.pod_spec import FAMILIES, PodSpec
from infra.pod_task import PodTask
from infra.progress import say
from infra.tracking.execution import execution_id, note_cached
from infra.tracking.machine import lineage_page
from infra.tracking.record import tracked
from tasks.artifacts import Artifact
from tasks.manifest import MANIFEST, ArtifactError, Manifest, remove, text_digest, verify
from tasks.offsite import offsite
from tasks.spec import Spec, StageSpec
from tasks.stored import look_at, send

A = TypeVar("A", bound=Artifact)

ONE_TRY = Survival()

quiet()
quiet_end()

# digests of what this process's stages made, as opposed to found in the cache: here, and elsewhere
_made_here: set[str] = set()
_received: set[str] = set()


class _NoFields(BaseModel):
    """Of which Flyte's type says no more than that it is a model."""


class PlainModels(PydanticTransformer):
    """Specs and artifacts without their JSON schema, which Flyte's catalog makes part of a cache key: a description
    that was changed would make every stage again."""

    def __init__(self) -> None:
        usual = PydanticTransformer()
        TypeTransformer.__init__(self, usual.name, Artifact, enable_type_assertions=False)
        self._plain = usual.get_literal_type(_NoFields)

    def get_literal_type(self, t: type[BaseModel]) -> LiteralType:
        return LiteralType(simple=self._plain.simple, annotation=self._plain.annotation)


TypeEngine.register(PlainModels(), additional_types=[StageSpec])


@dataclass(frozen=True)
class Stage:
    """Marks a Flyte task as a stage (its `task_config`)."""

    engine: Engine
    pod: PodSpec  # what its pod has where the recipe does not say


class StageTask(PodTask, PythonFunctionTask[Stage]):
    """A Flyte task that runs here or where its spec's placement says. Its local cache hits are only believed
    while their files are there, and are recorded in the execution that they served."""

    def __call__(self, **inputs: Any) -> Any:
        return super().__call__(**_apart(inputs))

    def execute(self, **inputs: Any) -> Any:
        """Taken apart again: a spec that was a promise is whole still."""
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
            say(f"{stage} is cached, but its files are not what they were. {error}\nMaking it again.")
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
        """The artifact that was promised, its files checked unless they were just made. Raises ArtifactError."""
        try:
            artifact = self._artifact(ctx, promise.val)
        except ValidationError as error:  # Flyte's directory type looks for it at once
            raise ArtifactError("Its directory is gone, or another version of Baton made it.") from error
        if artifact.digest not in _made_here:
            if is_bucket(artifact.place):  # who reads its files checks them
                look_at(artifact.place, artifact.digest)
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

    `cached=False` is for what belongs to one execution, like its report. `pod`: what its pod has, beside what all of
    the image's family have, where the recipe says nothing."""

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
            environment=ENVIRONMENT,
            cache=Cache(version=engine.version, ignored_inputs=("how",)) if cached else False,
            enable_deck=True,
            deck_fields=(),
        )
        return made_task

    return decorate


def _apart(inputs: dict[str, Any]) -> dict[str, Any]:
    """With what the result is in `spec`, and how it is reached in `how`."""
    spec, how = inputs["spec"], json.loads(inputs.get("how") or "{}")
    if isinstance(spec, Spec):
        spec, how = spec.joined(how).apart()
    return inputs | {"spec": spec, "how": json.dumps(how, sort_keys=True)}


def _sent(value: Any, storage: str) -> Any:
    """Artifacts as they are found in storage; anything else as it is."""
    if isinstance(value, Artifact):
        return value.at(send(value.place, value.digest, storage))
    return [_sent(item, storage) for item in value] if isinstance(value, list) else value


def _identity_digest(spec: Spec) -> str:
    return text_digest(json.dumps(spec.identity(), sort_keys=True))


@contextmanager
def retryable() -> Iterator[None]:
    """In a pod, what another attempt may cure is said to be so: Flyte makes as many as the stage's retries allow."""
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
    survival: Survival = ONE_TRY,
    **inputs: Artifact | Sequence[Artifact],
) -> A:
    """Run a stage's engine on its inputs, tracked, and return the artifact that it made.

    `title` tells apart the uses of one engine (evaluate base, evaluate sft); `processes` asks for
    torchrun, on each of `nodes` machines; `survival` says what is done when one of them dies or hangs.
    A list of artifacts, `more=[…]`, is as many inputs: more.0, more.1, … In a pod, what is made or half made is in
    storage (tasks/offsite.py), and what is found there is not made again. Raises EngineFailed, ArtifactError,
    StorageError; FlyteRecoverableException.
    """
    title = title or engine.stage
    words = spec.model_dump(mode="json")
    named = _one_by_one(inputs)
    digests = {name: artifact.digest for name, artifact in named.items()}
    job_dir = job_directory(engine, spec.identity(), digests)
    away = offsite(job_dir)
    _drop_damaged(job_dir / "output")
    if away and (found := away.resume()):
        return _found(title, made, *found)
    request = {
        "stage": engine.stage,
        "kind": made.kind,
        "spec": spec.model_dump(mode="json", exclude={"placement": {"setup"}}),  # it may say more than is to be kept
        "inputs": {
            name: {"path": str(item.local()), "digest": item.digest, "place": item.place}
            for name, item in named.items()
        },
    }
    again = shlex.join(["python", *engine.command(job_dir, processes, Node(nodes=nodes, address="MASTER_ADDR"))[1:]])
    start = partial(run_engine, engine, job_dir, request, title=title, processes=processes, nodes=nodes)
    if this_node(nodes).rank:
        start(survival=survival)
        raise IgnoreOutputs("node 0 hands out the result")
    with sigterm_as_exit(), tracked(title, job_dir, spec=words, inputs=digests, command=again) as record:
        with away.sending() if away else nullcontext():
            output = start(survival=survival)
        artifact = made.from_directory(output)
        place = away.finish(artifact.digest) if away else address_of(str(output))
        record.made(made.kind, artifact.digest, artifact.facts())
    _made_here.add(artifact.digest)
    _draw_deck(title, output)
    return artifact.at(place)


def _found(title: str, made: type[A], place: str, manifest: Manifest) -> A:
    """What another pod has made, recorded as served from a cache."""
    note_cached(title, made.kind, manifest.digest, manifest.facts, spec=manifest.spec, inputs=manifest.parents)
    say(f"✓ {title:<14} found in {place}")
    _show(title, f"<p>{made.kind} {manifest.digest} was found in {place}</p>")
    return made.from_place(place)


def _one_by_one(inputs: dict[str, Artifact | Sequence[Artifact]]) -> dict[str, Artifact]:
    """Each input by a name of its own; an empty list leaves no trace."""
    named: dict[str, Artifact] = {}
    for name, given in inputs.items():
        if isinstance(given, Artifact):
            named[name] = given
        else:
            named |= {f"{name}.{index}": artifact for index, artifact in enumerate(given)}
    return named


def _drop_damaged(output: Path) -> None:
    """A finished job is used again only while its files are what they were."""
    if not (output / MANIFEST).exists():
        return
    try:
        verify(output)
    except ArtifactError as error:
        say(f"{error}\nMaking it again.")
        remove(output)


def _draw_deck(title: str, output: Path) -> None:
    from tasks.report.page import stage_page  # matplotlib: not on the path of --help

    _show(title, stage_page(output))


def _show(title: str, page: str) -> None:
    """As the stage's deck on Flyte's page of it."""
    lineage = lineage_page(execution_id())
    link = f'<p><a href="{lineage}">Lineage of this execution</a></p>' if lineage else ""
    current_context().decks.append(Deck(title, link + page))
