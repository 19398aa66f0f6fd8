"""What `pyflyte run --remote`, and `pyflyte register` of a launch plan, are told before anything is registered: what a
cluster's pods would not have."""

import os
from collections.abc import Callable
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, TypeVar, cast
from urllib.parse import urlsplit

import click
from flytekit.clis.sdk_in_container.constants import CTX_CONFIG_FILE
from flytekit.clis.sdk_in_container.helpers import FLYTE_REMOTE_INSTANCE_KEY

import images
from images import NO_IMAGES
from infra.placement.storage import StorageError, is_bucket
from infra.progress import say
from infra.tracking.machine import CONSOLE, LINEAGE
from infra.tracking.redact import redact_text
from tasks.spec import Problem
from workflows.given import Given
from workflows.pod_defaults import fitted, gpus_of_all
from workflows.recipe import Recipe, given_of
from workflows.recipe_error import RecipeError
from workflows.travelling import named_here, sent, too_large, with_sources

STORE = "MLFLOW_TRACKING_URI"
# A pod has nothing of the client's
PASSED_ON = (STORE, "MLFLOW_EXPERIMENT_NAME", "BATON_STORAGE", "HF_HUB_OFFLINE", LINEAGE)


R = TypeVar("R", bound=Recipe)


def checked(validate: Callable[[Any], R], run: Any) -> Callable[[Any], R]:
    """A recipe's validation, and what a cluster asks beside it; the small files that it names are uploaded. `run`:
    flytekit's RunLevelParams, or a `registration`. Raises RecipeError, NoImage, Stopped."""

    def both(content: Any) -> R:
        found: list[Problem] = []
        try:
            recipe = validate(content)
        except RecipeError as error:
            if error.recipe is None:
                raise
            recipe, found = cast(R, error.recipe), error.problems
        given = given_of(recipe)
        shared = run.envvars.get("BATON_STORAGE", "")
        named = named_here(given, shared)
        found += [*too_large(named, shared), *_nodes(given, shared), *_tracking(run.envvars)]
        if found:
            raise RecipeError(found, recipe)
        images_of(run)
        _compile(recipe)
        if gpus := gpus_of_all(given):
            asked = ", ".join(f"{stage} {many}" for stage, many in gpus.items())
            say(f"GPUs that the pods ask for: {asked} (`pod: {{resources: {{gpu: 0}}}}` in a stage: none)")
        whole: R = with_sources(recipe)
        return sent(whole, named, run)

    return both


def registration() -> Any:
    """As RunLevelParams, what `pyflyte register` was told, if that is what imports the caller; else None."""
    context = click.get_current_context(silent=True)
    if context is None or context.info_name != "register":
        return None
    told = context.params
    return SimpleNamespace(
        config_file=context.obj.get(CTX_CONFIG_FILE),
        image_config=told["image_config"],
        envvars=told["env"] or {},
        project=told["project"],
        domain=told["domain"],
        remote_instance=lambda: context.obj[FLYTE_REMOTE_INSTANCE_KEY],
    )


def pass_on(run: Any) -> None:
    """Into the `--env` of a run: variables of this environment that have no secrets in them, unless it has them."""
    here = {name: os.environ[name] for name in PASSED_ON if os.environ.get(name)} | {CONSOLE: _console(run)}
    run.envvars = {name: value for name, value in here.items() if redact_text(value) == value} | (run.envvars or {})


def _console(run: Any) -> str:
    """Flyte's console, as `pyflyte run` itself says where the execution can be seen."""
    from flytekit.configuration import Config

    platform = Config.auto(run.config_file).platform
    scheme = "http" if platform.insecure else "https"
    return str(platform.console_endpoint or f"{scheme}://{platform.endpoint.removeprefix('dns:///')}")


def images_of(run: Any) -> None:
    """Every family has an image. Raises NoImage."""
    from flytekit.clis.sdk_in_container.helpers import patch_image_config

    config = patch_image_config(run.config_file, run.image_config)
    missing = [each.name for each in images.BY_FAMILY.values() if not (each.registry or config.find_image(each.name))]
    if missing:
        raise images.NoImage(NO_IMAGES.format(", ".join(missing)))


def _nodes(given: Given, shared: str) -> list[Problem]:
    """Only SkyPilot starts the processes of several machines, and these write one checkpoint together."""
    spec = given.specs.get("pretrain")
    if spec is None or spec.layout.nodes == 1:
        return []
    if spec.placement is None:
        nodes = spec.layout.nodes
        allowed = f"1, in a cluster's pod; several machines are SkyPilot's: add `placement: {{nodes: {nodes}, …}}`"
        return [Problem("pretrain.layout.nodes", nodes, allowed)]
    if spec.placement.storage or (shared and not is_bucket(shared)):
        return []
    return [Problem("pretrain.placement.storage", None, "a folder that the machines share with the cluster's pods")]


def _tracking(environment: dict[str, str]) -> list[Problem]:
    """A pod's own file of records is gone with it."""
    store = environment.get(STORE)
    if store is None:
        way_out = f"--env {STORE}=http://… if it does not"
        say(f"tracking: {STORE} is not set here: pods record nothing unless the cluster sets it for them ({way_out})")
        return []
    if urlsplit(store).scheme in ("http", "https", "databricks"):
        return []
    return [Problem(STORE, redact_text(store), "a server that the pods reach: http://… or https://…")]


def _compile(recipe: Recipe) -> None:
    """The DAG as the first pod would make it, so that what Flyte cannot run is said here. Raises Stopped."""
    from flytekit.configuration import ImageConfig, SerializationSettings
    from flytekit.core.context_manager import CompilationState, FlyteContextManager

    from workflows.continuous_recipe import ContinuousRecipe
    from workflows.pretrain_to_rl import dag

    if isinstance(recipe, ContinuousRecipe):  # its DAGs depend on what the registry says
        return
    here = FlyteContextManager.current_context().with_serialization_settings(SerializationSettings(ImageConfig()))
    compiling = here.with_compilation_state(CompilationState(prefix=""))
    # an address that pods alone can look up: that was said, and the first pod compiles the rest
    with suppress(StorageError), FlyteContextManager.with_context(compiling):
        dag(fitted(recipe, given_of(recipe)))
