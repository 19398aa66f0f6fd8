"""A stage's pod on a Flyte cluster: the recipe's fields, and their translation for Flyte.

Like a placement it does not affect the result, so it enters no cache key and no digest.
"""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from baton.infra.errors import UserError
from baton.infra.placement.config import VariableName
from baton.infra.pod import this_pod
from baton.infra.process.limits import cpu_limit, memory_limit

SECRETS_OF_ALL = "BATON_SECRETS"  # comma-separated names of the secrets that every pod of a registration gets
SECRETS = "baton"  # group of the Flyte secrets: a Kubernetes Secret of that name in the project-domain namespace
PAGE = 2**16  # largest amount by which the kernel rounds a limit down
DEVICES = Path("/dev")  # the driver's own list has all GPUs of the node
GPUS = ("nvidia[0-9]*", "kfd", "dxg")  # NVIDIA's, AMD's, Windows's
UNITS: dict[str, float] = {"": 1, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15} | {
    f"{letter}i": 1024**power for power, letter in enumerate("KMGTP", 1)
}

Quantity = Annotated[
    str, StringConstraints(pattern=rf"^[0-9]{{1,15}}(\.[0-9]{{1,9}})?({'|'.join(filter(None, UNITS))})?$")
]
Cores = (
    Annotated[str, StringConstraints(pattern=r"^[0-9]{1,7}(m|\.[0-9]{1,9})?$")]
    | Annotated[float, Field(gt=0, le=10_000)]
)


class _StrictModel(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class Resources(_StrictModel):
    """Requests and limits alike, in Kubernetes' units."""

    cpu: Cores | None = Field(None, description="Cores: 4, or 500m")
    memory: Quantity | None = Field(None, description="64Gi; default: the plan's estimate, if it has one")
    gpu: int | None = Field(None, ge=0, le=64, description="GPUs; count")
    accelerator: str | None = Field(
        None, min_length=1, description="GPU name as in the cluster's node labels, such as nvidia-tesla-a100"
    )
    shared_memory: bool | Quantity | None = Field(
        None, description="/dev/shm; true: as large as the memory; Kubernetes' default is 64 MB"
    )
    ephemeral_storage: Quantity | None = Field(None, description="Disk for inputs, checkpoints and outputs: 200Gi")


class Toleration(_StrictModel):
    """A Kubernetes toleration."""

    key: str | None = Field(None, description="Taint's key; null: every taint")
    operator: Literal["Equal", "Exists"] = Field("Equal", description="Whether the taint's value must match")
    value: str | None = Field(None, description="Taint's value")
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = Field(None, description="null: every one")


class PodSpec(_StrictModel):
    """Omitted fields take the stage's defaults."""

    resources: Resources = Field(Resources(), description="Requested resources")
    retries: int | None = Field(
        None,
        ge=0,
        le=100,
        description="Retries in new pods after a recoverable error; system errors are Flyte's",
    )
    interruptible: bool | None = Field(None, description="May run on preemptible machines (spot)")
    timeout: int | None = Field(None, gt=0, le=315_360_000, description="Of one attempt, seconds")
    termination_grace_period_seconds: int | None = Field(
        None, ge=0, le=3600, description="From SIGTERM to SIGKILL: time for a last checkpoint"
    )
    planned_memory: Quantity | None = Field(None, description="the plan's estimate of the memory; filled in by Baton")
    secrets: list[VariableName] = Field(
        [],
        max_length=100,
        description=f"Environment variables filled from Flyte secrets: [HF_TOKEN], keys of the group {SECRETS}",
    )
    node_selector: dict[str, str] = Field({}, description="Labels that the node must have")
    tolerations: list[Toleration] = Field([], max_length=100, description="Taints that the node may have")

    def over(self, default: "PodSpec") -> "PodSpec":
        """This spec, with omitted fields from `default`."""
        fields, defaults = (spec.model_dump(exclude_defaults=True) for spec in (self, default))
        resources = defaults.get("resources", {}) | fields.get("resources", {})
        secrets = sorted({*self.secrets, *default.secrets})
        return PodSpec.model_validate(defaults | fields | {"resources": resources, "secrets": secrets})

    def overrides(self) -> dict[str, Any]:
        """The fields that can differ per node, as arguments of flytekit's `with_overrides`."""
        from flytekit import Resources as FlyteResources
        from flytekit.extras.accelerators import GPUAccelerator

        resources = self.resources
        amounts = FlyteResources(
            cpu=resources.cpu,
            mem=resources.memory,
            gpu=resources.gpu or None,
            ephemeral_storage=resources.ephemeral_storage,
        )
        arguments = {"requests": amounts, "limits": amounts, "shared_memory": resources.shared_memory or None}
        arguments |= {"retries": self.retries, "interruptible": self.interruptible}
        arguments |= {"accelerator": GPUAccelerator(resources.accelerator)} if resources.accelerator else {}
        return arguments | ({"timeout": self.timeout} if self.timeout is not None else {})

    def template_fields(self) -> str:
        """The fields that only a task's template can have, which all its nodes in one DAG share; JSON."""
        return self.model_dump_json(
            include={"secrets", "node_selector", "tolerations", "termination_grace_period_seconds"}
        )

    def pod_spec(self) -> dict[str, Any]:
        """The Kubernetes pod spec; empty if a plain container will do."""
        tolerations = [toleration.model_dump(exclude_none=True) for toleration in self.tolerations]
        fields = {
            "terminationGracePeriodSeconds": self.termination_grace_period_seconds,
            "nodeSelector": self.node_selector or None,
            "tolerations": tolerations or None,
        }
        return {name: value for name, value in fields.items() if value is not None}


def secrets_of_all() -> list[str]:
    """Return the secrets that every pod gets, from the client's environment, which pods that compile DAGs get too."""
    return [name.strip() for name in os.environ.get(SECRETS_OF_ALL, "").split(",") if name.strip()]


def secrets_variable() -> dict[str, str]:
    """Return the environment variable that names to a pod the secrets that all pods get."""
    return {SECRETS_OF_ALL: os.environ[SECRETS_OF_ALL]} if secrets_of_all() else {}


def check_secrets(names: Iterable[str]) -> None:
    """In a pod, raise UserError if secrets that it should get are missing: Flyte leaves out those that a cluster
    lacks."""
    pod = this_pod()
    missing = sorted(name for name in {*names} if name not in os.environ)
    if pod and missing:
        values = " ".join(f"--from-literal={name}=…" for name in missing)
        raise UserError(
            f"this pod lacks {', '.join(missing)}, because the Secret `{SECRETS}` of its namespace lacks it "
            f"(kubectl -n {pod.project}-{pod.domain} create secret generic {SECRETS} {values}), or Flyte's webhook for "
            f"secrets is off; pod.secrets and {SECRETS_OF_ALL} name the secrets that pods get"
        )


def check_gpus(asked: Resources) -> None:
    """In a pod that should have GPUs and has none, raise UserError: the stage would run on its CPUs, for days."""
    if this_pod() and asked.gpu and not any(device for name in GPUS for device in DEVICES.glob(name)):
        raise UserError(
            f"this pod asked for GPUs ({asked.gpu}) and has none: raise gpu in Flyte's task_resources.limits, and make "
            "the GPU runtime the default of the nodes or of the pod template (runtimeClassName: nvidia). To run the "
            "stage on CPUs, set its pod.resources.gpu to 0"
        )


# By image family. For stages with an estimate, the memory comes from workflows/cluster/pod_defaults.py.
FAMILIES = {
    family: PodSpec(resources=resources, retries=2, secrets=secrets_of_all())
    for family, resources in {
        "baton-data": Resources(cpu=1, memory="2Gi"),
        "baton-train": Resources(cpu=2, memory="4Gi", shared_memory=True),
        "baton-serve": Resources(cpu=2, memory="8Gi", shared_memory=True),
        "baton-post-train": Resources(cpu=2, memory="8Gi", shared_memory=True),
    }.items()
}
SAVES = PodSpec(termination_grace_period_seconds=120)  # for a last checkpoint; Kubernetes' default is 30 s


def in_bytes(quantity: str) -> float:
    """A quantity of memory or disk, in bytes."""
    number = quantity.rstrip("kKMGTPi")
    return float(number) * UNITS[quantity[len(number) :]]


def in_cores(cores: str | float) -> float:
    return float(cores.removesuffix("m")) / 1000 if isinstance(cores, str) and cores.endswith("m") else float(cores)


def short_of(asked: Resources) -> list[str]:
    """Return the resources of which this pod has less than requested, such as ["memory 1.0 GiB of 4Gi"]."""
    shortages, memory, cpu = [], memory_limit(), cpu_limit()
    if asked.memory and memory is not None and memory < int(in_bytes(asked.memory)) - PAGE:
        shortages.append(f"memory {memory / 1024**3:.1f} GiB of {asked.memory}")
    if asked.cpu is not None and cpu is not None and cpu < in_cores(asked.cpu):
        shortages.append(f"{cpu:g} CPUs of {asked.cpu}")
    if asked.gpu and (gpus := len([*DEVICES.glob("nvidia[0-9]*")])) < asked.gpu:
        shortages.append(f"{gpus} GPUs of {asked.gpu}")
    return shortages


def in_mib(size: float) -> str:
    """Bytes as a Kubernetes quantity in Mi, rounded up; in Gi from 10Gi on."""
    return f"{-(-int(size) // 1024**2)}Mi" if size < 10 * 1024**3 else in_gib(size)


def in_gib(size: float) -> str:
    """Bytes as a Kubernetes quantity in Gi, rounded up."""
    return f"{max(1, -(-int(size) // 1024**3))}Gi"
