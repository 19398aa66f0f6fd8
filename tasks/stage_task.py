"""A stage as a Flyte task: what happens when it is called, from top to bottom.

1. `__call__` splits the spec: the fields of its identity stay in `spec`, and `options` gets the others.
   While Flyte compiles a DAG for a cluster, that is all: the call becomes a node with its pod or its placement.
2. `local_execute`, on one machine, returns the artifact that Flyte's local cache has for these inputs, if its files
   are intact, or gone and not needed (workflows/dag/recompute.py); else Flyte executes the task.
3. `execute`, here and in a cluster's pod, sends the task to the machine of its placement, or runs its function.
4. The function, which tasks/stage.py wraps, calls `run` (tasks/run.py): a finished result is reused, else the stage's
   engine is executed.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

from pydantic import ValidationError

from baton.infra.flyte.cache import recomputed
from baton.infra.flyte.options import OPTIONS, Options
from baton.infra.flyte.placed_run import in_job, is_job
from baton.infra.flyte.pod_template import warn_of_missing_resources
from baton.infra.flyte.task import FlyteTask, is_compiling, register
from baton.infra.pod import this_pod
from baton.infra.pod_spec import PodSpec
from baton.infra.process.launch import Engine
from baton.infra.progress import say
from baton.infra.storage.buckets import storage_of
from baton.infra.storage.disk_errors import disk_errors_named
from baton.tasks import cache_hit
from baton.tasks.artifacts import Artifact
from baton.tasks.core.manifest import ArtifactError
from baton.tasks.core.spec import Spec, StageSpec
from baton.tasks.core.stored import send
from baton.tasks.models.artifact import HFModel


@dataclass(frozen=True)
class Stage:
    """Marks a Flyte task as a stage (its `task_config`)."""

    engine: Engine
    pod: PodSpec  # its pod's resources unless the recipe has them
    returns_input: bool = False
    reports_on: tuple[str, ...] = ()


class StageTask(FlyteTask[Stage]):
    """A stage's Flyte task."""

    def __call__(self, **inputs: Any) -> Any:
        inputs = split(inputs)
        if is_compiling():
            options = inputs[OPTIONS]
            return self.node(inputs, options.pod(self.task_config.pod), is_placed=options.placement is not None)
        return super().__call__(**inputs)

    def local_execute(self, ctx: Any, **inputs: Any) -> Any:
        compute, options = partial(super().local_execute, ctx, **inputs), inputs.get(OPTIONS) or Options()
        with disk_errors_named():
            if self.task_config.returns_input or options.recompute:
                return recomputed(compute)
            promise = compute()
            try:
                artifact = self.artifact(promise)
                cache_hit.check(artifact)
            except (ArtifactError, ValidationError) as error:  # the latter: another version of Baton made it
                say(f"{self.stage} is cached, but its files were changed or removed. {error}\nRecomputing it.")
                return recomputed(compute)
            is_of_a_dag = options.title is not None  # which has decided that a missing artifact is not needed
            if not is_of_a_dag and cache_hit.is_missing(artifact.place):
                return recomputed(compute)
            cache_hit.note(artifact, options.title or artifact.title(self.stage))
            return promise

    def execute(self, **inputs: Any) -> Any:
        inputs = split(inputs)  # a spec that was a promise in `__call__` is not split yet
        inputs |= {name: cache_hit.present(inputs[name]) for name in self.task_config.reports_on if name in inputs}
        if this_pod() and not self.is_placed:
            warn_of_missing_resources(self.name.rpartition(".")[2], inputs[OPTIONS].pod(self.task_config.pod))
        if is_job():
            return in_job(partial(self.run_here, inputs))
        placement = inputs[OPTIONS].placement
        if placement is None:
            return self.run_here(inputs)
        storage = storage_of(placement.storage)
        sent = {name: _sent(value, storage) for name, value in inputs.items()}
        output, is_new = self.run_as_job(sent, placement)
        if is_new:
            (literal,) = output.literals.values()
            cache_hit.received.add(self.value(literal).digest)
        return output

    @property
    def stage(self) -> str:
        """The name of its engine's stage."""
        engine: Engine = self.task_config.engine
        return engine.stage

    def artifact(self, promise: Any) -> Artifact:
        """The artifact of a promise, which may lack its files. Raises ArtifactError, ValidationError."""
        artifact: Artifact = self.value(promise.val)
        return artifact


def split(inputs: dict[str, Any]) -> dict[str, Any]:
    """The inputs as the cache key has them: `spec` keeps the fields of its identity, `options` gets the others.
    Idempotent."""
    spec, options = inputs["spec"], inputs.get(OPTIONS) or Options()
    if isinstance(spec, Spec):
        spec, fields = spec.with_options(options.fields).split_options()
        options = options.model_copy(update={"fields": fields})
    return inputs | {"spec": spec, OPTIONS: options}


def _sent(value: Any, storage: str) -> Any:
    """Artifacts and a spec's files as they are in storage, uploaded first if necessary."""
    if isinstance(value, HFModel) and value.base:
        value = value.with_base_at(send(value.base.place, storage))
    if isinstance(value, Artifact):
        return value.at(send(value.place, storage))
    if isinstance(value, StageSpec):
        return value.sent(storage)
    if isinstance(value, dict):
        return {name: _sent(item, storage) for name, item in value.items()}
    return [_sent(item, storage) for item in value] if isinstance(value, list) else value


register(Stage, StageTask)
