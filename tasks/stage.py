"""What every stage has in common, said once: its image, its cache rule, its deck, and the way its
engine is run and tracked.

    @stage(ENGINE, image=images.TRAIN)
    def pretrain(spec: PretrainSpec, data: TokenizedCorpus) -> MegatronCheckpoint:
        return run(ENGINE, MegatronCheckpoint, spec, data=data)

The cache rule: a stage is served from Flyte's cache when its engine's version, its spec's identity
and the *digests* of its inputs are the same. Paths, machines, layouts and retries never count: Flyte has
them in an input of their own, `how`, which it ignores.
"""

import copy
import inspect
import json
import os
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial, wraps
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_type_hints

from flytekit import Cache, Deck, HashMethod, ImageSpec, Secret, current_context, task
from flytekit.configuration import SerializationSettings
from flytekit.core.base_task import IgnoreOutputs
from flytekit.core.context_manager import FlyteContext, FlyteContextManager
from flytekit.core.python_function_task import PythonFunctionTask
from flytekit.core.type_engine import TypeEngine, TypeTransformer
from flytekit.exceptions.user import FlyteRecoverableException
from flytekit.extend import TaskPlugins
from flytekit.extras.pydantic_transformer.transformer import PydanticTransformer
from flytekit.models.literals import LiteralMap
from flytekit.models.security import SecurityContext
from flytekit.models.task import Container, K8sPod
from flytekit.models.types import LiteralType
from pydantic import BaseModel, ValidationError

import tasks.cache  # noqa: F401 - where Flyte's is, and its errors
from infra.errors import Stopped, disk_errors_named
from infra.home import quiet
from infra.launch import Engine, EngineFailed, Survival, job_directory, run_engine
from infra.node import Node, this_node
from infra.placement.config import Placement
from infra.placement.storage import address_of, send, storage_of
from infra.placement.task import TASK_TYPE, Placeable
from infra.pod import this_pod
from infra.pods import FAMILIES, SECRETS, Pod
from infra.progress import say
from infra.tracking.execution import note_cached
from infra.tracking.record import tracked
from tasks.artifacts import Artifact
from tasks.manifest import MANIFEST, ArtifactError, read_manifest, remove, text_digest, verify
from tasks.spec import Spec, StageSpec

A = TypeVar("A", bound=Artifact)

ONE_TRY = Survival()
PRIMARY = "primary"  # the container's name in a pod of our own

quiet()

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
    pod: Pod  # what its pod has where the recipe does not say


class StageTask(Placeable, PythonFunctionTask[Stage]):
    """A Flyte task that runs here or where its spec's placement says. Its local cache hits are only believed
    while their files are there, and are recorded in the execution that they served."""

    @cached_property
    def pod(self) -> Pod:
        """Of a copy it is what it was given."""
        return self.task_config.pod

    def __call__(self, **inputs: Any) -> Any:
        inputs = _apart(inputs)
        state = FlyteContextManager.current_context().compilation_state
        if state is None:
            return super().__call__(**inputs)
        pod = Pod.model_validate(json.loads(inputs["how"]).get("pod") or {}).over(self.task_config.pod)
        promise = super(StageTask, self._with(pod.of_all_its_nodes())).__call__(**inputs)
        _check_one_template(state.nodes)
        return promise.with_overrides(**pod.overrides())

    @cache  # noqa: B019 - tasks live as long as their module
    def _with(self, of_all_its_nodes: str) -> "StageTask":
        """The same task with another template."""
        task = copy.copy(self)
        task.__dict__.pop("placed", None)
        task.pod = Pod.model_validate_json(of_all_its_nodes)
        return task

    @property
    def security_context(self) -> SecurityContext:
        names = self.pod.secrets
        return SecurityContext(secrets=[secret(name) for name in names]) if names else super().security_context

    def get_container(self, settings: SerializationSettings) -> Container | None:
        return None if self._own_pod() else super().get_container(settings)

    def get_k8s_pod(self, settings: SerializationSettings) -> K8sPod | None:
        """Of plain values: flytekit's way, by a PodTemplate, needs Kubernetes' library in every image."""
        if not self._own_pod():
            return None
        own: Container = self._get_container(settings)
        env = [{"name": name, "value": value} for name, value in own.env.items()]
        container = {"name": PRIMARY, "image": own.image, "args": own.args, "env": env}
        return K8sPod(pod_spec=self._own_pod() | {"containers": [container]})

    def get_config(self, settings: SerializationSettings) -> dict[str, str]:
        return {"primary_container_name": PRIMARY} if self._own_pod() else {}

    def _own_pod(self) -> dict[str, Any]:
        """A placed stage has none."""
        return {} if self.task_type == TASK_TYPE else self.pod.pod_spec()

    def execute(self, **inputs: Any) -> Any:
        """Taken apart again: a spec that was a promise is whole still. In a pod, what another pod may cure is said to
        be so."""
        try:
            return super().execute(**_apart(inputs))
        except EngineFailed as error:
            if not (this_pod() and error.curable):
                raise
            raise FlyteRecoverableException(error.message) from error

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
                made = artifact.local()
                manifest = read_manifest(made)
                note_cached(
                    artifact.title(stage),
                    artifact.kind,
                    artifact.digest,
                    artifact.facts(),
                    spec=manifest.spec,
                    inputs=manifest.parents,
                    job_dir=made.parent if made.name == "output" else None,  # else it was fetched from a bucket
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
            verify(artifact.local(), artifact.digest)
        return artifact

    def _artifact(self, ctx: FlyteContext, literal: Any) -> Artifact:
        (python_type,) = self.python_interface.outputs.values()
        artifact: Artifact = TypeEngine.to_python_value(ctx, literal, python_type)
        return artifact


TaskPlugins.register_pythontask_plugin(Stage, StageTask)


def _check_one_template(nodes: list[Any]) -> None:
    """Flyte takes the first of several templates of one name, in silence. Raises Stopped."""
    newest: StageTask = nodes[-1].flyte_entity
    others = [node.flyte_entity for node in nodes if node.flyte_entity.name == newest.name]
    if FlyteContextManager.current_context().serialization_settings and len(set(map(id, others))) > 1:
        stage = newest.task_config.engine.stage
        raise Stopped(
            f"{stage}: runs several times in this DAG, and on a Flyte cluster these must be alike in whether they have "
            "a placement, and in pod.secrets, node_selector, tolerations and termination_grace_period_seconds: give "
            "all of them the same, such as a placement each"
        )


def secret(name: str) -> Secret:
    """A Flyte secret that is an environment variable."""
    return Secret(group=SECRETS, key=name, env_var=name, mount_requirement=Secret.MountType.ENV_VAR)


def stage(
    engine: Engine, *, image: ImageSpec, cached: bool = True, pod: Pod | None = None
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
            task_config=Stage(engine, (pod or Pod()).over(FAMILIES[image.name])),
            container_image=image,
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
    A list of artifacts, `more=[…]`, is as many inputs: more.0, more.1, … Raises EngineFailed,
    ArtifactError.
    """
    title = title or engine.stage
    words = spec.model_dump(mode="json")
    named = _one_by_one(inputs)
    digests = {name: artifact.digest for name, artifact in named.items()}
    job_dir = job_directory(engine, spec.identity(), digests)
    _drop_damaged(job_dir / "output")
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
    with tracked(title, job_dir, spec=words, inputs=digests, command=again) as record:
        output = start(survival=survival)
        artifact = made.from_directory(output)
        record.made(made.kind, artifact.digest, artifact.facts())
    _made_here.add(artifact.digest)
    _draw_deck(title, output)
    return artifact.at(address_of(str(output)))


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

    current_context().decks.append(Deck(title, stage_page(output)))
