"""A Flyte task whose outputs from Flyte's local cache are checked before they count."""

import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeVar

from flytekit.core.context_manager import FlyteContext, FlyteContextManager
from flytekit.core.local_cache import LocalTaskCache
from flytekit.core.promise import Promise, translate_inputs_to_literals
from flytekit.core.python_function_task import PythonFunctionTask
from flytekit.core.type_engine import TypeEngine
from flytekit.extend import TaskPlugins
from flytekit.models.literals import LiteralMap

from infra.flyte.pod_task import PodTask
from infra.storage.disk_errors import disk_errors_named

C = TypeVar("C")


class CachedTask(PodTask, PythonFunctionTask[C]):
    """A task with one output that runs in this process or where its spec's placement says."""

    def split(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """The inputs as the cache key has them. Idempotent."""
        return inputs

    def output(self, inputs: dict[str, Any], compute: Callable[[], Any], recompute: Callable[[], Any]) -> Any:
        """The promise of the output. `compute` may return a cached one, `recompute` executes the task in any case."""
        return compute()

    def __call__(self, **inputs: Any) -> Any:
        return super().__call__(**self.split(inputs))

    def execute(self, **inputs: Any) -> Any:
        """Split the inputs here too: a spec that was a promise in `__call__` is not split yet."""
        return super().execute(**self.split(inputs))

    def local_execute(self, ctx: FlyteContext, **inputs: Any) -> Any:
        compute = partial(super().local_execute, ctx, **inputs)

        def recompute() -> Any:
            os.environ["FLYTE_LOCAL_CACHE_OVERWRITE"] = "true"  # Flyte reads it from the environment only
            try:
                return compute()
            finally:
                os.environ.pop("FLYTE_LOCAL_CACHE_OVERWRITE", None)  # an input that was recomputed has removed it

        with disk_errors_named():
            return self.output(inputs, compute, recompute)

    def cached(self, inputs: dict[str, Any]) -> Promise | None:
        """The promise of the cached output for these inputs, without executing anything."""
        context, metadata = FlyteContextManager.current_context(), self.metadata
        if not metadata.cache:
            return None
        literals = translate_inputs_to_literals(
            context, self.split(inputs), self.interface.inputs, self.get_input_types() or {}
        )
        key = LiteralMap(literals), metadata.cache_ignore_input_vars
        outputs = LocalTaskCache.get(self.name, metadata.cache_version, *key)
        return None if outputs is None else Promise(*next(iter(outputs.literals.items())))

    def value(self, literal: Any) -> Any:
        """A literal of its output as a Python value."""
        (python_type,) = self.python_interface.outputs.values()
        return TypeEngine.to_python_value(FlyteContextManager.current_context(), literal, python_type)


def hashes(value: Any) -> Iterator[str]:
    """The hash of an output that is an input, if it has one."""
    if isinstance(value, Promise) and value.is_ready and getattr(value.val, "hash", None):
        yield value.val.hash


def register(config: type[C], task: type[CachedTask[C]]) -> None:
    """Make `@task(task_config=config(…))` a task of this kind."""
    TaskPlugins.register_pythontask_plugin(config, task)
