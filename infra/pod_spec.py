"""A stage's pod on a Flyte cluster: the recipe's fields, and their translation for Flyte.

Like a placement it does not affect the result, so it enters no cache key and no digest.
"""

import os
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from infra.placement.config import VariableName

SECRETS_OF_ALL = "BATON_SECRETS"  # comma-separated names of the secrets that every pod of a registration gets
SECRETS = "baton"  # group of the Flyte secrets: a Kubernetes Secret of that name in the project-domain namespace
UNITS: dict[str, float] = {"": 1, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15} | {
    f"{letter}i": 1024**power for power, letter in enumerate("KMGTP", 1)
}

Quantity = Annotated[str, StringConstraints(pattern=rf"^\d+(\.\d+)?({'|'.join(filter(None, UNITS))})?$")]
Cores = Annotated[str, StringConstraints(pattern=r"^\d+(m|\.\d+)?$")] | Annotated[float, Field(gt=0)]


class _Words(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class Resources(_Words):
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


class Toleration(_Words):
    """A Kubernetes toleration."""

    key: str | None = Field(None, description="Taint's key; null: every taint")
    operator: Literal["Equal", "Exists"] = Field("Equal", description="Whether the taint's value must match")
    value: str | None = Field(None, description="Taint's value")
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = Field(None, description="null: every one")


class PodSpec(_Words):
    """Omitted fields take the stage's defaults."""

    resources: Resources = Field(Resources(), description="Requested resources")
    retries: int | None = Field(
        None,
        ge=0,
        le=100,
        description="Retries in new pods after a recoverable error; system errors are Flyte's",
    )
    interruptible: bool | None = Field(None, description="May run on preemptible machines (spot)")
    timeout: int | None = Field(None, gt=0, description="Of one attempt, seconds")
    termination_grace_period_seconds: int | None = Field(
        None, ge=0, le=3600, description="From SIGTERM to SIGKILL: time for a last checkpoint"
    )
    secrets: list[VariableName] = Field(
        [],
        max_length=100,
        description=f"Environment variables filled from Flyte secrets: [HF_TOKEN], keys of the group {SECRETS}",
    )
    node_selector: dict[str, str] = Field({}, description="Labels that the node must have")
    tolerations: list[Toleration] = Field([], max_length=100, description="Taints that the node may have")

    def over(self, default: "PodSpec") -> "PodSpec":
        """This spec, with omitted fields from `default`."""
        mine, theirs = (spec.model_dump(exclude_defaults=True) for spec in (self, default))
        resources = theirs.get("resources", {}) | mine.get("resources", {})
        secrets = sorted({*self.secrets, *default.secrets})
        return PodSpec.model_validate(theirs | mine | {"resources": resources, "secrets": secrets})

    def overrides(self) -> dict[str, Any]:
        """The fields that can differ per node, as arguments of flytekit's `with_overrides`."""
        from flytekit import Resources as FlyteResources
        from flytekit.extras.accelerators import GPUAccelerator

        wanted = self.resources
        amounts = FlyteResources(
            cpu=wanted.cpu,
            mem=wanted.memory,
            gpu=wanted.gpu or None,
            ephemeral_storage=wanted.ephemeral_storage,
        )
        found = {"requests": amounts, "limits": amounts, "shared_memory": wanted.shared_memory or None}
        found |= {"retries": self.retries, "interruptible": self.interruptible}
        found |= {"accelerator": GPUAccelerator(wanted.accelerator)} if wanted.accelerator else {}
        return found | ({"timeout": self.timeout} if self.timeout is not None else {})

    def of_all_its_nodes(self) -> str:
        """The fields that only a task's template can have, which all its nodes in one DAG share; JSON."""
        return self.model_dump_json(
            include={"secrets", "node_selector", "tolerations", "termination_grace_period_seconds"}
        )

    def pod_spec(self) -> dict[str, Any]:
        """The Kubernetes pod spec; empty if a plain container will do."""
        tolerations = [toleration.model_dump(exclude_none=True) for toleration in self.tolerations]
        found = {
            "terminationGracePeriodSeconds": self.termination_grace_period_seconds,
            "nodeSelector": self.node_selector or None,
            "tolerations": tolerations or None,
        }
        return {name: value for name, value in found.items() if value is not None}


def secrets_of_all() -> list[str]:
    """From the environment of the client, which the pods that compile DAGs get too."""
    return [name.strip() for name in os.environ.get(SECRETS_OF_ALL, "").split(",") if name.strip()]


# By image family. For stages with an estimate, the memory comes from workflows/pod_defaults.py.
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


def in_gib(size: float) -> str:
    """Bytes as a Kubernetes quantity in Gi, rounded up."""
    return f"{max(1, -(-int(size) // 1024**3))}Gi"
