"""One attempt at a node's task: the command and environment that Flyte gives to the pod, and the pod's result."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any

from flyteidl.core.dynamic_job_pb2 import DynamicJobSpec
from flyteidl.core.errors_pb2 import ContainerError, ErrorDocument
from flyteidl.core.execution_pb2 import ExecutionError
from flyteidl.core.literals_pb2 import LiteralMap
from flyteidl.core.tasks_pb2 import Resources, TaskTemplate
from flytekit.models.task import K8sPod

from baton.infra.pod_spec import in_bytes, in_cores
from tests.cluster.failure import Failed
from tests.cluster.storage import Storage

SIGKILLED = 137
QUOTED_CHARACTERS = 2048  # characters of a pod's log that its message quotes (FallbackToLogsOnError)
VARIABLE = re.compile(r"\{\{\s*\.(\w+)\s*\}\}")


@dataclass(frozen=True)
class Asked:
    """A node's request to the cluster: the settings of its task, overridden by the node's own."""

    image: str
    args: tuple[str, ...]
    environment: Mapping[str, str]
    requests: Mapping[str, str]  # cpu, memory, gpu, ephemeral_storage
    limits: Mapping[str, str]
    retries: int
    timeout_s: int
    interruptible: bool
    extended: Any  # flyteidl's ExtendedResources: accelerator, shared memory
    pod: Mapping[str, Any]  # the pod template of the task or the node, in Kubernetes' format
    secrets: tuple[Any, ...]  # flyteidl's Secret


def asked(task: TaskTemplate, node: Any) -> Asked:
    overrides = node.task_node.overrides
    own_pod = overrides.pod_template if overrides.HasField("pod_template") else task.k8s_pod
    pod = K8sPod.from_flyte_idl(own_pod).pod_spec or {}
    container = _container(task, pod)
    amounts = {kind: _amounts(getattr(overrides.resources, kind)) for kind in ("requests", "limits")}
    if not overrides.HasField("resources"):
        amounts = container["resources"]
    extended = overrides if overrides.HasField("extended_resources") else task
    metadata = node.metadata
    return Asked(
        image=overrides.container_image or container["image"],
        args=tuple(container["args"]),
        environment=container["env"],
        requests=amounts["requests"],
        limits=amounts["limits"],
        retries=metadata.retries.retries or task.metadata.retries.retries,
        timeout_s=metadata.timeout.seconds or task.metadata.timeout.seconds,
        interruptible=(metadata if metadata.HasField("interruptible") else task.metadata).interruptible,
        extended=extended.extended_resources,
        pod=pod,
        secrets=tuple(task.security_context.secrets),
    )


BUILT_IN: Mapping[str, Mapping[str, str]] = {  # Flyte's default task_resources
    "defaults": {"cpu": "2", "memory": "200Mi"},
    "limits": {"cpu": "2", "memory": "1Gi", "gpu": "1"},
}


def clamped(expected: Asked, allowed: Mapping[str, Mapping[str, str]]) -> Asked:
    """Limit the requested resources of a pod as flyteplugins' ApplyResourceOverrides does, which reports no change."""
    requests, limits = dict(expected.requests), dict(expected.limits)
    for name in {"cpu", "memory", *requests, *limits}:
        request = requests.get(name) or limits.get(name) or allowed["defaults"].get(name)
        limit = limits.get(name) or request
        most = allowed["limits"].get(name)
        if request and limit:
            limits[name] = _least(limit, most)
            requests[name] = _least(request, limits[name])
    return replace(expected, requests=requests, limits=limits)


def _least(amount: str, most: str | None) -> str:
    return amount if most is None or _number(amount) <= _number(most) else most


def _number(amount: str) -> float:
    return in_cores(amount) if amount.endswith("m") else in_bytes(amount)


def _container(task: TaskTemplate, pod: Mapping[str, Any]) -> dict[str, Any]:
    if not task.HasField("container"):
        (primary,) = [each for each in pod["containers"] if each.get("args")]
        environment = {each["name"]: each["value"] for each in primary.get("env", ()) if "value" in each}
        amounts = {"requests": {}, "limits": {}, **primary.get("resources", {})}
        return {**primary, "env": environment, "resources": amounts}
    resources = task.container.resources
    return {
        "image": task.container.image,
        "args": task.container.args,
        "env": {each.key: each.value for each in task.container.env},
        "resources": {"requests": _amounts(resources.requests), "limits": _amounts(resources.limits)},
    }


def _amounts(entries: Any) -> dict[str, str]:
    return {Resources.ResourceName.Name(each.name).lower(): each.value for each in entries}


@dataclass(frozen=True)
class Attempt:
    execution: Any  # the ExecutionCreateRequest
    task: TaskTemplate
    asked: Asked
    node: str  # n0, n0-0-dn3
    data: str  # the folder of the node in storage
    number: int  # starts at 0
    root: str  # address of the storage

    @property
    def pod(self) -> str:
        return f"{self.execution.name}-{self.node}-{self.number}"

    @property
    def output_prefix(self) -> str:
        return f"{self.data}/{self.number}"

    @property
    def raw_prefix(self) -> str:
        return f"{self.root}/raw/{sha256(self.pod.encode()).hexdigest()[:2]}/{self.pod}"

    @property
    def checkpoints(self) -> str:
        return f"{self.raw_prefix}/_flytecheckpoints"

    @property
    def function(self) -> str:
        """The name of the task's function."""
        return str(self.task.id.name.rpartition(".")[2])

    def next(self) -> "Attempt":
        return replace(self, number=self.number + 1)

    def command(self) -> list[str]:
        words = {
            "input": f"{self.data}/inputs.pb",
            "outputPrefix": self.output_prefix,
            "rawOutputDataPrefix": self.raw_prefix,
            "checkpointOutputPrefix": self.checkpoints,
            "prevCheckpointPrefix": replace(self, number=self.number - 1).checkpoints if self.number else '""',
        }
        return [VARIABLE.sub(lambda found: words[found[1]], word) for word in self.asked.args]

    def filled_in(self) -> TaskTemplate:
        """Return the template with this attempt's command, for the connector."""
        template = TaskTemplate()
        template.CopyFrom(self.task)
        template.container.args[:] = self.command()
        return template

    def environment(self, secrets: Mapping[str, str]) -> dict[str, str]:
        """Return the variables of the container, the secrets that the cluster has, and the variables that Flyte adds to
        every pod."""
        workflow, task = self.execution.spec.launch_plan, self.task.id
        own = {
            "FLYTE_INTERNAL_EXECUTION_ID": self.execution.name,
            "FLYTE_INTERNAL_EXECUTION_PROJECT": self.execution.project,
            "FLYTE_INTERNAL_EXECUTION_DOMAIN": self.execution.domain,
            "FLYTE_INTERNAL_EXECUTION_WORKFLOW": f"{workflow.project}:{workflow.domain}:{workflow.name}",
            "FLYTE_ATTEMPT_NUMBER": str(self.number),
            "FLYTE_INTERNAL_TASK_PROJECT": task.project,
            "FLYTE_INTERNAL_TASK_DOMAIN": task.domain,
            "FLYTE_INTERNAL_TASK_NAME": task.name,
            "FLYTE_INTERNAL_TASK_VERSION": task.version,
        }
        given = {each.key: each.value for each in self.execution.spec.envs.values}
        return {**self.asked.environment, **given, **self._secrets(secrets), **own}

    def _secrets(self, known: Mapping[str, str]) -> dict[str, str]:
        expected = [each for each in self.asked.secrets if each.key in known]
        named = {f"_FSEC_{each.group}_{each.key}".upper(): known[each.key] for each in expected}
        return named | {each.env_var: known[each.key] for each in expected if each.env_var}

    def _ended(self, exit_code: int, reason: str, said: str = "") -> str:
        name = (self.asked.pod and "primary") or self.pod
        return f"\r\n[{name}] terminated with exit code ({exit_code}). Reason [{reason}]. Message: \n{said}."

    def out_of_memory(self, exit_code: int) -> Failed:
        """Judge a pod as flyteplugins' DeterminePrimaryContainerPhase does, which ignores everything that such a pod
        has left."""
        return Failed(self._ended(exit_code, "OOMKilled"), recoverable=True)

    def result(self, exit_code: int, storage: Storage, said: str = "") -> LiteralMap | DynamicJobSpec:
        """Return the result of the pod: outputs, or the nodes of a dynamic workflow. Raises Failed.

        A pod whose task has failed exits with 0 and leaves error.pb; one that was lost leaves nothing."""
        if exit_code:
            ended = self._ended(exit_code, "Error", said[-QUOTED_CHARACTERS:])
            message = f"Pod failed. No message received from kubernetes.{ended}"
            raise Failed(message, recoverable=True, system=exit_code == SIGKILLED)
        if (error := storage.get(f"{self.output_prefix}/error.pb")) is not None:
            found = ErrorDocument.FromString(error).error
            raise Failed(
                found.message,
                recoverable=found.kind == ContainerError.RECOVERABLE,
                system=found.origin == ExecutionError.SYSTEM,
            )
        if (futures := storage.get(f"{self.output_prefix}/futures.pb")) is not None:
            return DynamicJobSpec.FromString(futures)
        if (outputs := storage.get(f"{self.output_prefix}/outputs.pb")) is not None:
            return LiteralMap.FromString(outputs)
        raise Failed(f"{self.pod}: OutputsNotFound", recoverable=True, system=True)
