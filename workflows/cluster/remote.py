"""Check a recipe against what a cluster's pods have, before `pyflyte run --remote` or `pyflyte register` registers
anything."""

import json
import os
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from flytekit.configuration import Image, ImageConfig

from baton import images
from baton.infra.commands import command
from baton.infra.flyte.command_line import console, image_config
from baton.infra.flyte.pod_template import check_one_template
from baton.infra.placement.config import UNUSED
from baton.infra.pod_spec import FAMILIES, PodSpec, Resources
from baton.infra.progress import say
from baton.infra.storage.buckets import is_bucket
from baton.infra.tracking import user
from baton.infra.tracking.code import code_version
from baton.infra.tracking.machine import CONSOLE, LINEAGE
from baton.infra.tracking.redact import redact_text
from baton.infra.tracking.remote_run import CODE
from baton.infra.tracking.repository import for_pods
from baton.infra.tracking.store import passed_on
from baton.tasks.core.spec import Problem
from baton.workflows.checks.run_context import RunContext
from baton.workflows.checks.table import CHECKS, checked
from baton.workflows.checks.warnings import warnings_of
from baton.workflows.cluster.pod_defaults import fitted, gpus_of_all
from baton.workflows.cluster.uploads import local_paths, too_large, upload
from baton.workflows.continuous_training.recipe import ContinuousRecipe
from baton.workflows.dag.calls import calls
from baton.workflows.dag.recorded import with_source_code
from baton.workflows.dag.tasks import TASKS
from baton.workflows.recipe import Recipe, context_of

STORE = "MLFLOW_TRACKING_URI"
# A pod has nothing of the client's environment
PASSED_ON = (STORE, "MLFLOW_EXPERIMENT_NAME", "BATON_STORAGE", "HF_HUB_OFFLINE", LINEAGE)


R = TypeVar("R", bound=Recipe)


def checked_for(recipe: R, run: Any) -> R:
    """The recipe, if no check finds a problem, nor a cluster's pods lack anything for its run; the small local files
    that it names are uploaded. `run`: flytekit's RunLevelParams, or a `registration`. Raises RecipeError, NoImage,
    UserError."""
    accepted(recipe, run.envvars)
    context, shared = context_of(recipe), run.envvars.get("BATON_STORAGE", "")
    images_of(run, images_needed(stage_pods(recipe)))
    if gpus := gpus_of_all(context):
        requests = ", ".join(f"{stage} {count}" for stage, count in gpus.items())
        say(f"GPUs that the pods request: {requests} (`pod: {{resources: {{gpu: 0}}}}` in a stage: none)")
    say(f"checked before the run: {', '.join(CHECKS)}, the cluster's pods")
    portable: R = with_source_code(recipe)
    return upload(portable, local_paths(context, shared), run)


def accepted(recipe: R, environment: dict[str, str]) -> R:
    """The recipe, if no check finds a problem in it, nor with pods that have this environment. Raises RecipeError."""
    shared = environment.get("BATON_STORAGE", "")
    checked(
        recipe,
        lambda context: too_large(local_paths(context, shared), shared),
        lambda context: _nodes(context, shared),
        lambda _: _tracking(environment),
    )
    for warning in warnings_of(context_of(recipe)):
        say(f"warning: {warning}")
    return recipe


def pass_on(run: Any) -> None:
    """Add this environment's variables to a run's `--env`, except those with secrets and those it sets itself."""
    variables = {name: os.environ[name] for name in PASSED_ON if os.environ.get(name)} | {CONSOLE: console(run)}
    variables = {name: value for name, value in variables.items() if redact_text(value) == value}
    run.envvars = variables | for_pods() | user.for_pods() | _code() | (run.envvars or {})


def _code() -> dict[str, str]:
    """The variable that tells pods which code they have: an archive of it has no commit."""
    version = code_version()
    return {} if version["commit"] in ("unknown", "none") else {CODE: json.dumps(version)}


def images_of(run: Any, needed: Collection[str]) -> None:
    """Check that the stage families that a run needs have images, and let it be registered without the others'. Raises
    NoImage."""
    config = image_config(run)
    if missing := without_image(config, needed):
        raise images.no_images(", ".join(missing))
    if unavailable := absent_images(config, needed):
        raise images.NoImage(unavailable)
    unused = [Image.look_up_image_info(name, UNUSED) for name in without_image(config)]
    run.image_config = replace(run.image_config, images=[*(run.image_config.images or ()), *unused])


def absent_images(config: ImageConfig, needed: Collection[str]) -> str:
    """A message about pinned images that their registries lack; empty if there is none. Pods would try to pull them for
    ten minutes, and record nothing."""
    from baton.infra.image_registry import absent  # imports Docker's library

    pinned = [found.full for name in sorted(needed) if (found := config.find_image(name)) and found.digest]
    unavailable = absent(pinned)
    fix = f"`{command('baton images REGISTRY')}` pushes and pins them, or correct their names"
    return (
        f"{', '.join(unavailable)}: not in {'its' if len(unavailable) == 1 else 'their'} registry; {fix}"
        if unavailable
        else ""
    )


def images_needed(pods: Iterable["StagePod"]) -> list[str]:
    """The names of the images that a run's pods need."""
    return sorted({pod.image for pod in pods})


def without_image(config: ImageConfig, needed: Collection[str] | None = None) -> list[str]:
    """The names of the families that have no image; `needed`: of these alone."""
    families = [spec for spec in images.BY_FAMILY.values() if needed is None or spec.name in needed]
    return [spec.name for spec in families if not (spec.registry or config.find_image(spec.name))]


def _nodes(context: RunContext, shared: str) -> Iterator[Problem]:
    """Several nodes need SkyPilot to start their processes, and those that work through files a shared folder."""
    for path, spec in context.stages().items():
        nodes, field = spec.nodes(), spec.shared_folder_for()
        if spec.placement is None:
            if nodes > 1 and spec.spread_by:
                placed = f"`placement: {{nodes: {nodes}, …}}`"
                allowed = f"1 in a cluster's pod; for several nodes use SkyPilot: add {placed}"
                yield Problem(f"{path}.layout.nodes", nodes, allowed)
        elif field and not spec.placement.storage and (not shared or is_bucket(shared)):
            allowed = f"a folder that the cluster's pods and the machines of {field} share; or leave {field} out"
            yield Problem(f"{path}.placement.storage", None, allowed)


def _tracking(environment: dict[str, str]) -> list[Problem]:
    """A tracking server is set: a file in a pod is lost with it."""
    store = environment.get(STORE)
    if store is None:
        fix = f"otherwise pass --env {STORE}=http://…"
        say(f"tracking: {STORE} is not set here: pods record nothing unless the cluster sets it ({fix})")
        return []
    if passed_on(store):
        return []
    return [Problem(STORE, redact_text(store), "a server that the pods can reach: http://… or https://…")]


@dataclass(frozen=True)
class StagePod:
    """The resources that a pod of a recipe's run asks for."""

    title: str
    image: str  # the name of its family's
    asked: Resources


# what compiles the DAG, and stages that are not known before the run
ANY_STAGE = [StagePod(f"stages of {family}", family, pod.resources) for family, pod in FAMILIES.items()]


def stage_pods(recipe: Recipe) -> list[StagePod]:
    """The pods of a recipe's run. Raises UserError for a DAG that Flyte cannot run."""
    if isinstance(recipe, ContinuousRecipe):  # its DAGs depend on the registry's content
        return ANY_STAGE
    pods = [StagePod("the pod that compiles the DAG", images.DATA.name, Resources())]
    templates: dict[str, set[str]] = {}  # by stage
    for call in calls(fitted(recipe, context_of(recipe))):
        task, placed = TASKS[call.stage], call.spec.placement is not None
        pod: PodSpec = (call.spec.pod or PodSpec()).over(task.task_config.pod)
        templates.setdefault(call.stage, set()).add(f"{placed} {pod.template_fields()}")
        check_one_template(call.stage, len(templates[call.stage]))
        pods += [] if placed else [StagePod(call.title, task.container_image.name, pod.resources)]
    return pods
