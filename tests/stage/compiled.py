"""A dynamic's DAG as its pod compiles it, and the keys that Flyte's catalog uses for its nodes."""

from typing import Any

from flytekit import dynamic
from flytekit.configuration import FastSerializationSettings, Image, ImageConfig, SerializationSettings
from flytekit.core.context_manager import ExecutionState, FlyteContextManager
from flytekit.core.type_engine import TypeEngine
from flytekit.models.literals import BindingData, Literal
from flytekit.models.task import TaskTemplate

from baton import images
from baton.infra.flyte.options import OPTIONS, Options
from baton.tasks.report.artifact import Report
from baton.workflows.pretrain_to_rl import dag
from baton.workflows.recipe import Recipe

IMAGES = [
    Image(family.name, f"registry.invalid/{family.name}", digest="sha256:1") for family in images.BY_FAMILY.values()
]


@dynamic(container_image=images.DATA)
def compiled_dag(recipe: Recipe) -> Report:
    return dag(recipe)


def settings(pinned: list[Image]) -> SerializationSettings:
    """Return the settings that reach a dynamic's pod."""
    code = FastSerializationSettings(enabled=True, destination_dir=".", distribution_location="s3://bucket/fast.tar.gz")
    images_ = ImageConfig.create_from(Image("default", "registry.invalid/default", "1"), pinned)
    return SerializationSettings(images_, project="p", domain="d", version="1", fast_serialization_settings=code)


def job_spec(recipe: Recipe, pinned: list[Image] = IMAGES) -> Any:
    """Return the DynamicJobSpec."""
    context = FlyteContextManager.current_context()
    state = context.new_execution_state().with_params(mode=ExecutionState.Mode.TASK_EXECUTION)
    dynamic: Any = compiled_dag
    dynamic._wf = None  # a pod compiles only once
    with FlyteContextManager.with_context(
        context.with_execution_state(state).with_serialization_settings(settings(pinned))
    ) as pod:
        return dynamic.compile_into_workflow(pod, dynamic.task_function, recipe=recipe)


def templates(spec: Any) -> dict[str, TaskTemplate]:
    """Return the task templates by the stage's name. Flyte uses the first of several with one name."""
    found: dict[str, TaskTemplate] = {}
    for task in spec.tasks:
        found.setdefault(task.id.name.rpartition(".")[2], task)
    return found


def nodes(spec: Any) -> dict[str, list[Any]]:
    """Return the nodes of each stage."""
    found: dict[str, list[Any]] = {}
    for node in spec.nodes:
        found.setdefault(node.task_node.reference_id.name.rpartition(".")[2], []).append(node)
    return found


def keys(spec: Any) -> dict[str, list[Any]]:
    """Return the key of each node as Flyte 1.16 computes it (flytepropeller's catalog/datacatalog/transformer.go and
    flyteplugins' catalog/hashing.go): the task's name, cache version and interface, and the literals of the inputs that
    are not ignored. A promised input stands for its promise."""
    return {stage: [_key(templates(spec)[stage], node) for node in found] for stage, found in nodes(spec).items()}


def _key(task: TaskTemplate, node: Any) -> Any:
    ignored = task.metadata.cache_ignore_input_vars
    interface = task.interface.to_flyte_idl().SerializeToString(deterministic=True)
    inputs = {each.var: _bound(each.binding) for each in node.inputs if each.var not in ignored}
    return task.id.name, task.metadata.discovery_version, interface, inputs


def _bound(binding: BindingData) -> bytes:
    return bytes(binding.to_flyte_idl().SerializeToString(deterministic=True))


def options(node: Any) -> Options:
    """Return a node's options."""
    (binding,) = [each.binding for each in node.inputs if each.var == OPTIONS]
    found: Options = TypeEngine.to_python_value(FlyteContextManager.current_context(), Literal(binding.scalar), Options)
    return found
