"""The decorator that makes a stage of a function, with image, caching, deck and tracking.

    @stage(ENGINE, image=images.TRAIN)
    def pretrain(spec: PretrainSpec, data: TokenizedCorpus) -> MegatronCheckpoint:
        return run(ENGINE, MegatronCheckpoint, spec, data=data)

A stage is served from Flyte's cache if everything that its result depends on is the same (tasks/core/inputs.py).
"""

import inspect
import json
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any, TypeVar, get_type_hints

from flytekit import Cache, HashMethod, ImageSpec, task

from baton.infra.flyte.hooks import POD_ENVIRONMENT
from baton.infra.flyte.install import install
from baton.infra.flyte.options import OPTIONS, Options, running_with
from baton.infra.paths import quiet
from baton.infra.pod_spec import FAMILIES, PodSpec, check_gpus, check_secrets, secrets_variable
from baton.infra.process.launch import Engine
from baton.infra.storage.disk_errors import disk_errors_named
from baton.infra.tracking.record import failure_recorded
from baton.tasks.artifacts import Artifact
from baton.tasks.core.manifest import text_digest
from baton.tasks.core.spec import Spec, StageSpec
from baton.tasks.stage_task import Stage

A = TypeVar("A", bound=Artifact)

quiet()
install(Artifact, StageSpec, Options)


def stage(
    engine: Engine,
    *,
    image: ImageSpec,
    cached: bool = True,
    pod: PodSpec | None = None,
    returns_input: bool = False,
    reports_on: tuple[str, ...] = (),
    name: str = "",
    spec: type[Spec] | None = None,
) -> Callable[[Callable[..., A]], Callable[..., A]]:
    """Make a Flyte task of a function that takes a spec and artifacts and returns one artifact.

    `cached=False` is for what belongs to one execution, like its report, or is elsewhere too, like a model's version.
    `pod` has the default resources of its pod, over those of the image's family. `returns_input`: the stage returns one
    of its inputs, so that Flyte's local cache lacks its decision; it executes every time, and finds its finished job.
    `reports_on`: the lists and mappings of artifacts that it only reports on; those whose files are gone are left out
    (workflows/dag/recompute.py). `name` and `spec`: the name and the type of the spec of this task, if the function is
    that of several tasks; the docstring of the spec is then the task's description."""

    def decorate(function: Callable[..., A]) -> Callable[..., A]:
        hints = get_type_hints(function)
        artifact_type, kind = hints.pop("return"), spec or hints["spec"]
        default = (pod or PodSpec()).over(FAMILIES.get(image.name, PodSpec()))
        parameters = list(inspect.signature(function).parameters.values())

        @wraps(function)
        def wrapped(spec: Spec, options: Options, **inputs: Any) -> A:
            with running_with(options), failure_recorded(options.title or engine.stage), disk_errors_named():
                promised = options.pod(default)
                check_secrets(promised.secrets)
                check_gpus(promised.resources)
                return function(spec=spec.with_options(options.fields), **inputs)

        if spec:
            wrapped.__name__ = wrapped.__qualname__ = name
            wrapped.__doc__ = spec.__doc__
        # the artifact in the cache keys of the stages that follow
        wrapped.__annotations__ = {
            **hints,
            "spec": Annotated[kind, HashMethod(_identity_digest)],
            OPTIONS: Options,
            "return": Annotated[artifact_type, HashMethod(lambda artifact: artifact.key)],
        }
        last = inspect.Parameter(OPTIONS, inspect.Parameter.KEYWORD_ONLY, default=Options())
        wrapped.__signature__ = inspect.Signature([*parameters, last])  # type: ignore[attr-defined]
        flyte_task: Callable[..., A] = task(
            wrapped,
            task_config=Stage(engine, default, returns_input, reports_on),
            container_image=image,
            environment=POD_ENVIRONMENT | secrets_variable(),
            cache=Cache(version=engine.version, ignored_inputs=(OPTIONS,)) if cached else False,
            enable_deck=True,
            deck_fields=(),
        )
        return flyte_task

    return decorate


def _identity_digest(spec: Spec) -> str:
    return text_digest(json.dumps(spec.identity(), sort_keys=True))
