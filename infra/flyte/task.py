"""A task for flytekit 1.16, with the templates that a cluster gets, and the ways to run the task.

tasks/stage_task.py chooses the template and the way for a call.
"""

import copy
from functools import cache, cached_property
from typing import Any, Self, TypeVar

from flytekit.configuration import SerializationSettings
from flytekit.core.context_manager import FlyteContextManager
from flytekit.core.promise import Promise, translate_inputs_to_literals
from flytekit.core.python_function_task import PythonFunctionTask
from flytekit.core.type_engine import TypeEngine
from flytekit.extend import TaskPlugins
from flytekit.extend.backend.base_connector import AsyncConnectorExecutorMixin, Resource
from flytekit.models.literals import LiteralMap
from flytekit.models.security import SecurityContext
from flytekit.models.task import Container, K8sPod

from baton.infra.flyte.cache import get
from baton.infra.flyte.hooks import with_task_type
from baton.infra.flyte.placed_run import cancel, follow, image_of, is_of_this_execution, job_settings, jobs_from_here
from baton.infra.flyte.pod_template import PRIMARY, check_one_template, k8s_pod, security_context
from baton.infra.placement.config import TASK_TYPE, Placement
from baton.infra.pod_spec import PodSpec

C = TypeVar("C")


class FlyteTask(AsyncConnectorExecutorMixin, PythonFunctionTask[C]):
    """A task with one output, an input `options`, and the default of its pod in `task_config.pod`.

    The class overrides internals of flytekit's AsyncConnectorExecutorMixin: `_get`, which shows nothing while a job
    runs, and `connector_signal_handler`, which does not wait for the cancellation."""

    placement: Placement | None = None  # set on the copy that runs as a job of a connector in this process

    # Ways to run

    def node(self, inputs: dict[str, Any], pod: PodSpec, is_placed: bool) -> Any:
        """Return a node of the DAG that Flyte compiles, with a pod or as a job of the connector. Raises UserError."""
        task, context = self._with(pod.template_fields()), FlyteContextManager.current_context()
        promise = PythonFunctionTask.__call__(task.placed if is_placed else task, **inputs)
        if context.serialization_settings and (state := context.compilation_state):
            of_its_name = {id(node.flyte_entity) for node in state.nodes if node.flyte_entity.name == self.name}
            check_one_template(self.name, len(of_its_name))
        return promise.with_overrides(**pod.overrides())

    def run_here(self, inputs: dict[str, Any]) -> Any:
        """Run the task's function in this process."""
        return PythonFunctionTask.execute(self, **inputs)

    def run_as_job(self, inputs: dict[str, Any], placement: Placement) -> tuple[LiteralMap, bool]:
        """Run the task through the connector in this process. Return, when the job has ended, the output, and whether
        this execution started the job. Raises PlacementFailed."""
        task = copy.copy(self.placed)
        task.placement = placement
        with jobs_from_here(placement):
            output: LiteralMap = AsyncConnectorExecutorMixin.execute(task, **inputs)
        return output, is_of_this_execution(self.name, task.resource_meta)

    def cached(self, inputs: dict[str, Any]) -> Promise | None:
        """Return the promise of the output in Flyte's local cache for these inputs, without executing anything."""
        context, metadata = FlyteContextManager.current_context(), self.metadata
        if not metadata.cache:
            return None
        literals = translate_inputs_to_literals(context, inputs, self.interface.inputs, self.get_input_types() or {})
        key = LiteralMap(literals), metadata.cache_ignore_input_vars
        outputs = get(self.name, metadata.cache_version, *key)
        return None if outputs is None else Promise(*next(iter(outputs.literals.items())))

    def value(self, literal: Any) -> Any:
        """Convert a literal of the output to a Python value."""
        (python_type,) = self.python_interface.outputs.values()
        return TypeEngine.to_python_value(FlyteContextManager.current_context(), literal, python_type)

    # Templates

    @cached_property
    def pod(self) -> PodSpec:
        """The default pod; `_with` sets it on a copy."""
        default: PodSpec = self.task_config.pod
        return default

    @cache  # noqa: B019 - tasks live as long as their module
    def _with(self, template_fields: str) -> Self:
        """Return a copy of the task with another template."""
        task = copy.copy(self)
        task.__dict__.pop("placed", None)
        task.pod = PodSpec.model_validate_json(template_fields)
        return task

    @cached_property
    def placed(self) -> Self:
        """The task with a connector's type, by which a cluster routes it, and the same cache key."""
        return with_task_type(copy.copy(self), TASK_TYPE)

    @property
    def is_placed(self) -> bool:
        """Return whether a connector runs this task."""
        return bool(self.task_type == TASK_TYPE)

    @property
    def security_context(self) -> SecurityContext:
        return security_context(self.pod) or super().security_context

    def get_image(self, settings: SerializationSettings) -> str:
        image = image_of(self.container_image, settings, self.is_placed)
        return str(super().get_image(settings)) if image is None else image

    def get_container(self, settings: SerializationSettings) -> Container | None:
        return None if self._has_own_pod() else super().get_container(settings)

    def get_k8s_pod(self, settings: SerializationSettings) -> K8sPod | None:
        return k8s_pod(self.pod, self._get_container(settings)) if self._has_own_pod() else None

    def get_config(self, settings: SerializationSettings) -> dict[str, str]:
        return {"primary_container_name": PRIMARY} if self._has_own_pod() else {}

    def get_custom(self, settings: SerializationSettings) -> dict[str, Any]:
        return job_settings() if self.is_placed else {}

    def _has_own_pod(self) -> bool:
        """Return whether the pod needs more than a plain container."""
        return not self.is_placed and bool(self.pod.pod_spec())

    # While a job of the connector in this process runs

    async def _get(self, resource_meta: Any) -> Resource:
        return await follow(self._connector, resource_meta, self.name.rpartition(".")[2], self.placement)

    def connector_signal_handler(self, resource_meta: Any, *signal_and_frame: Any) -> None:
        cancel(self._connector, resource_meta)
        self._clean_up_task = True


def is_compiling() -> bool:
    """Return whether Flyte is compiling a DAG, in which calls of tasks become nodes."""
    return FlyteContextManager.current_context().compilation_state is not None


def register(config: type[C], task: type[FlyteTask[C]]) -> None:
    """Make `@task(task_config=config(…))` a task of this kind."""
    TaskPlugins.register_pythontask_plugin(config, task)
