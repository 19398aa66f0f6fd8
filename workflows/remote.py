"""Check a recipe against what a cluster's pods have, before `pyflyte run --remote` or `pyflyte register` registers
anything."""

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, TypeVar
from urllib.parse import urlsplit

import click
from flytekit.clis.sdk_in_container.constants import CTX_CONFIG_FILE
from flytekit.clis.sdk_in_container.helpers import FLYTE_REMOTE_INSTANCE_KEY
from flytekit.models.task import Resources as TaskResources

import images
from infra.errors import Stopped
from infra.placement.config import TASK_TYPE
from infra.placement.storage import StorageError, is_bucket
from infra.pod_spec import FAMILIES, Resources
from infra.progress import say
from infra.tracking.code import code_version
from infra.tracking.machine import CONSOLE, LINEAGE
from infra.tracking.redact import redact_text
from infra.tracking.remote_run import CODE
from infra.tracking.repository import for_pods
from tasks.posttrain.spec import PostTrainSpec
from tasks.pretrain.spec import PretrainSpec
from tasks.spec import Problem
from workflows.pod_defaults import fitted, gpus_of_all
from workflows.recipe import Recipe, context_of, validated
from workflows.run_context import RunContext
from workflows.uploads import local_paths, too_large, upload, with_source_code

STORE = "MLFLOW_TRACKING_URI"
# A pod has nothing of the client's environment
PASSED_ON = (STORE, "MLFLOW_EXPERIMENT_NAME", "BATON_STORAGE", "HF_HUB_OFFLINE", LINEAGE)


R = TypeVar("R", bound=Recipe)


def checked(validate: Callable[[Any], R], run: Any) -> Callable[[Any], R]:
    """`validate`, then check what the recipe's run requires of a cluster; upload the small local files that the recipe
    names. `run`: flytekit's RunLevelParams, or a `registration`. Raises RecipeError, NoImage, Stopped."""

    def check(content: Any) -> R:
        shared = run.envvars.get("BATON_STORAGE", "")
        recipe = validated(content, validate, lambda found: _problems(context_of(found), shared, run.envvars))
        images_of(run, {pod.image for pod in stage_pods(recipe)})
        if gpus := gpus_of_all(context_of(recipe)):
            requests = ", ".join(f"{stage} {count}" for stage, count in gpus.items())
            say(f"GPUs that the pods request: {requests} (`pod: {{resources: {{gpu: 0}}}}` in a stage: none)")
        portable: R = with_source_code(recipe)
        return upload(portable, local_paths(context_of(recipe), shared), run)

    return check


def _problems(context: RunContext, shared: str, environment: dict[str, str]) -> list[Problem]:
    return [*too_large(local_paths(context, shared), shared), *_nodes(context, shared), *_tracking(environment)]


def registration() -> Any:
    """The options of `pyflyte register`, with the fields of RunLevelParams, if that command imports the caller; else
    None."""
    context = click.get_current_context(silent=True)
    if context is None or context.info_name != "register":
        return None
    options = context.params
    if options["version"] == "":  # of a command in its place that failed
        raise Stopped("--version is empty: run `python -m workflows.version FILE` alone to see why")
    return SimpleNamespace(
        config_file=context.obj.get(CTX_CONFIG_FILE),
        image_config=options["image_config"],
        envvars=options["env"] or {},
        project=options["project"],
        domain=options["domain"],
        remote_instance=lambda: context.obj[FLYTE_REMOTE_INSTANCE_KEY],
    )


def pass_on(run: Any) -> None:
    """Add this environment's variables to a run's `--env`, except those with secrets and those it sets itself."""
    here = {name: os.environ[name] for name in PASSED_ON if os.environ.get(name)} | {CONSOLE: _console(run)}
    here = {name: value for name, value in here.items() if redact_text(value) == value}
    run.envvars = here | for_pods() | _code() | (run.envvars or {})


def _code() -> dict[str, str]:
    """The variable that tells pods which code they have: an archive of it has no commit."""
    found = code_version()
    return {} if found["commit"] in ("unknown", "none") else {CODE: json.dumps(found)}


def _console(run: Any) -> str:
    """The address of Flyte's console, as `pyflyte run` derives it."""
    from flytekit.configuration import Config

    platform = Config.auto(run.config_file).platform
    scheme = "http" if platform.insecure else "https"
    return str(platform.console_endpoint or f"{scheme}://{platform.endpoint.removeprefix('dns:///')}")


def images_of(run: Any, needed: set[str]) -> None:
    """Check that the stage families have images. Raises NoImage."""
    from flytekit.clis.sdk_in_container.helpers import patch_image_config

    config = patch_image_config(run.config_file, run.image_config)
    families = [spec for spec in images.BY_FAMILY.values() if spec.name in needed]
    missing = [spec.name for spec in families if not (spec.registry or config.find_image(spec.name))]
    if missing:
        raise images.no_images(", ".join(missing))


def _nodes(context: RunContext, shared: str) -> list[Problem]:
    """Several nodes need SkyPilot to start their processes, and a shared folder for their common checkpoint."""
    found = []
    for path, spec in context.stages().items():
        if not isinstance(spec, PretrainSpec | PostTrainSpec):
            continue
        nodes = spec.machines if isinstance(spec, PostTrainSpec) else spec.layout.nodes
        if nodes == 1:
            continue
        if spec.placement is None:
            allowed = f"1 in a cluster's pod; for several nodes use SkyPilot: add `placement: {{nodes: {nodes}, …}}`"
            found.append(Problem(f"{path}.layout.nodes", nodes, allowed))
        elif not spec.placement.storage and (not shared or is_bucket(shared)):
            allowed = "a folder that the machines share with the cluster's pods"
            found.append(Problem(f"{path}.placement.storage", None, allowed))
    return found


def _tracking(environment: dict[str, str]) -> list[Problem]:
    """A tracking server is set: a file in a pod is lost with it."""
    store = environment.get(STORE)
    if store is None:
        way_out = f"otherwise pass --env {STORE}=http://…"
        say(f"tracking: {STORE} is not set here: pods record nothing unless the cluster sets it ({way_out})")
        return []
    if urlsplit(store).scheme in ("http", "https", "databricks"):
        return []
    return [Problem(STORE, redact_text(store), "a server that the pods can reach: http://… or https://…")]


@dataclass(frozen=True)
class StagePod:
    """What a pod of a recipe's run asks for."""

    title: str
    image: str  # the name of its family's
    asked: Resources


# what compiles the DAG, and stages that are not known before the run
ANY_STAGE = [StagePod(f"stages of {family}", family, pod.resources) for family, pod in FAMILIES.items()]


def stage_pods(recipe: Recipe) -> list[StagePod]:
    """The pods of a recipe's run: compile the DAG as the first pod would, to report here what Flyte cannot run. Raises
    Stopped."""
    from flytekit.configuration import ImageConfig, SerializationSettings
    from flytekit.core.context_manager import CompilationState, FlyteContextManager

    from workflows.continuous_recipe import ContinuousRecipe
    from workflows.pretrain_to_rl import dag

    if isinstance(recipe, ContinuousRecipe):  # its DAGs depend on the registry's content
        return ANY_STAGE
    here = FlyteContextManager.current_context().with_serialization_settings(SerializationSettings(ImageConfig()))
    compiling = CompilationState(prefix="")
    # an address that only pods can read was already reported; the first pod compiles the rest
    try:
        with FlyteContextManager.with_context(here.with_compilation_state(compiling)):
            dag(fitted(recipe, context_of(recipe)))
    except StorageError:
        return ANY_STAGE
    first = StagePod("the pod that compiles the DAG", images.DATA.name, Resources())
    return [first, *(_pod_of(node) for node in compiling.nodes if node.flyte_entity.task_type != TASK_TYPE)]


def _pod_of(node: Any) -> StagePod:
    amounts = {entry.name: entry.value for entry in node._resources.limits} if node._resources else {}
    names = TaskResources.ResourceName
    asked = Resources(
        cpu=amounts.get(names.CPU),
        memory=amounts.get(names.MEMORY),
        gpu=int(amounts.get(names.GPU, 0)) or None,
        ephemeral_storage=amounts.get(names.EPHEMERAL_STORAGE),
    )
    task = node.flyte_entity
    return StagePod(task.name.rpartition(".")[2], task.container_image.name, asked)
