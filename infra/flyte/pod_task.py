"""A Flyte task whose pod is specified by each call."""

import copy
import json
from functools import cache, cached_property
from typing import Any, Self

from flytekit import Secret
from flytekit.configuration import SerializationSettings
from flytekit.core.context_manager import FlyteContextManager
from flytekit.models.security import SecurityContext
from flytekit.models.task import Container, K8sPod

from infra.errors import UserError
from infra.flyte.placed_task import Placeable
from infra.placement.config import TASK_TYPE
from infra.pod import this_pod
from infra.pod_spec import SECRETS, PodSpec, short_of
from infra.process.launch import STOP_GRACE
from infra.progress import say

PRIMARY = "primary"  # the container's name in a pod spec of ours


def secret(name: str) -> Secret:
    """A Flyte secret that is an environment variable."""
    return Secret(group=SECRETS, key=name, env_var=name, mount_requirement=Secret.MountType.ENV_VAR)


class PodTask(Placeable):
    """A mixin before PythonFunctionTask. `task_config.pod` is the default; the input `how` (JSON) may have a `pod`."""

    def execute(self, **inputs: Any) -> Any:
        """Say first what this pod lacks: a cluster's limits lower a request without a word."""
        if this_pod() and self.task_type != TASK_TYPE and (lacking := short_of(self.requested(inputs).resources)):
            say(f"{self.name.rpartition('.')[2]}: this pod has {', '.join(lacking)}; see Flyte's task_resources.limits")
        return super().execute(**inputs)

    def requested(self, inputs: dict[str, Any]) -> PodSpec:
        """The pod of one call."""
        default: PodSpec = self.task_config.pod
        return PodSpec.model_validate(json.loads(inputs["how"]).get("pod") or {}).over(default)

    @cached_property
    def pod(self) -> PodSpec:
        """The default; `_with` sets it on a copy."""
        default: PodSpec = self.task_config.pod
        return default

    def __call__(self, **inputs: Any) -> Any:
        state = FlyteContextManager.current_context().compilation_state
        if state is None:
            return super().__call__(**inputs)
        pod = self.requested(inputs)
        promise = super(PodTask, self._with(pod.template_fields())).__call__(**inputs)
        if FlyteContextManager.current_context().serialization_settings:
            of_its_name = {id(node.flyte_entity) for node in state.nodes if node.flyte_entity.name == self.name}
            check_one_template(self.name, len(of_its_name))
        return promise.with_overrides(**pod.overrides())

    @cache  # noqa: B019 - tasks live as long as their module
    def _with(self, template_fields: str) -> Self:
        """A copy of the task with another template."""
        task = copy.copy(self)
        task.__dict__.pop("placed", None)
        task.pod = PodSpec.model_validate_json(template_fields)
        return task

    @property
    def security_context(self) -> SecurityContext:
        names = self.pod.secrets
        return SecurityContext(secrets=[secret(name) for name in names]) if names else super().security_context

    def get_container(self, settings: SerializationSettings) -> Container | None:
        return None if self._own_pod() else super().get_container(settings)

    def get_k8s_pod(self, settings: SerializationSettings) -> K8sPod | None:
        """Built from plain values: flytekit's PodTemplate needs the Kubernetes library in every image."""
        if not self._own_pod():
            return None
        container: Container = self._get_container(settings)
        grace_s = self.pod.termination_grace_period_seconds
        grace = {} if grace_s is None else {STOP_GRACE: str(grace_s)}
        env = [{"name": name, "value": value} for name, value in ((container.env or {}) | grace).items()]
        primary = {"name": PRIMARY, "image": container.image, "args": container.args, "env": env}
        return K8sPod(pod_spec=self._own_pod() | {"containers": [primary]})

    def get_config(self, settings: SerializationSettings) -> dict[str, str]:
        return {"primary_container_name": PRIMARY} if self._own_pod() else {}

    def _own_pod(self) -> dict[str, Any]:
        """The pod spec; empty for a placed task."""
        return {} if self.task_type == TASK_TYPE else self.pod.pod_spec()


def check_one_template(stage: str, templates: int) -> None:
    """Flyte silently uses the first of several templates with one name. Raises UserError."""
    if templates > 1:
        raise UserError(
            f"{stage}: runs several times in this DAG. On a Flyte cluster, either all or none of these must have "
            "a placement, and pod.secrets, node_selector, tolerations and termination_grace_period_seconds must be the "
            "same: give all of them the same values"
        )
