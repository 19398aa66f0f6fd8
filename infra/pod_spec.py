"""What a stage's pod on a Flyte cluster asks for: the recipe's words, and what Flyte makes of them.

Like a placement it says nothing about the result, so it enters no cache key and no digest.
"""

import os
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from infra.placement.config import VariableName

SECRETS_OF_ALL = "BATON_SECRETS"  # names, with commas: what every pod of a registration has as secrets
SECRETS = "baton"  # the group of Flyte secrets: a Kubernetes Secret of that name in the project-domain's namespace
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
    memory: Quantity | None = Field(None, description="64Gi; default: by the plan's estimate, where it has one")
    gpu: int | None = Field(None, ge=0, le=64, description="GPUs; count")
    accelerator: str | None = Field(
        None, min_length=1, description="The GPU's name by the cluster's labels, such as nvidia-tesla-a100"
    )
    shared_memory: bool | Quantity | None = Field(
        None, description="/dev/shm; true: as large as the memory; Kubernetes' own is 64 MB"
    )
    ephemeral_storage: Quantity | None = Field(None, description="Disk for inputs, checkpoints and outputs: 200Gi")


class Toleration(_Words):
    """As Kubernetes has it."""

    key: str | None = Field(None, description="Taint's key; null: every taint")
    operator: Literal["Equal", "Exists"] = Field("Equal", description="Whether the value counts")
    value: str | None = Field(None, description="Taint's value")
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = Field(None, description="null: every one")


class PodSpec(_Words):
    """What is left out is as the stage's default has it."""

    resources: Resources = Field(Resources(), description="What it takes")
    retries: int | None = Field(
        None, ge=0, le=100, description="New pods after an error that another may cure; those of the system are Flyte's"
    )
    interruptible: bool | None = Field(None, description="May run on machines that can be taken away (spot)")
    timeout: int | None = Field(None, gt=0, description="Of one attempt, seconds")
    termination_grace_period_seconds: int | None = Field(
        None, ge=0, le=3600, description="Between SIGTERM and SIGKILL: time for a last checkpoint"
    )
    secrets: list[VariableName] = Field(
        [],
        max_length=100,
        description=f"Environment variables that are Flyte secrets, by name: [HF_TOKEN], keys of the group {SECRETS}",
    )
    node_selector: dict[str, str] = Field({}, description="Labels that the node has")
    tolerations: list[Toleration] = Field([], max_length=100, description="Taints that the node may have")

    def over(self, default: "PodSpec") -> "PodSpec":
        """This, and what it leaves out as in `default`."""
        mine, theirs = (each.model_dump(exclude_defaults=True) for each in (self, default))
        resources = theirs.get("resources", {}) | mine.get("resources", {})
        secrets = sorted({*self.secrets, *default.secrets})
        return PodSpec.model_validate(theirs | mine | {"resources": resources, "secrets": secrets})

    def overrides(self) -> dict[str, Any]:
        """What a node can have of its own, as the arguments of flytekit's `with_overrides`."""
        from flytekit import Resources as FlyteResources
        from flytekit.extras.accelerators import GPUAccelerator

        asked = self.resources
        amounts = FlyteResources(
            cpu=asked.cpu, mem=asked.memory, gpu=asked.gpu or None, ephemeral_storage=asked.ephemeral_storage
        )
        found = {"requests": amounts, "limits": amounts, "shared_memory": asked.shared_memory or None}
        found |= {"retries": self.retries, "interruptible": self.interruptible}
        found |= {"accelerator": GPUAccelerator(asked.accelerator)} if asked.accelerator else {}
        return found | ({"timeout": self.timeout} if self.timeout is not None else {})

    def of_all_its_nodes(self) -> str:
        """What only a task's template can have, so that it is the same for all nodes of a task in one DAG; JSON."""
        return self.model_dump_json(
            include={"secrets", "node_selector", "tolerations", "termination_grace_period_seconds"}
        )

    def pod_spec(self) -> dict[str, Any]:
        """As Kubernetes has it; empty where a plain container will do."""
        tolerations = [each.model_dump(exclude_none=True) for each in self.tolerations]
        found = {
            "terminationGracePeriodSeconds": self.termination_grace_period_seconds,
            "nodeSelector": self.node_selector or None,
            "tolerations": tolerations or None,
        }
        return {name: value for name, value in found.items() if value is not None}


def secrets_of_all() -> list[str]:
    """By the environment: the client's, and so that of the pods in which DAGs are made."""
    return [name.strip() for name in os.environ.get(SECRETS_OF_ALL, "").split(",") if name.strip()]


# By the image's family. The memory of what a plan has an estimate for is that of workflows/pod_defaults.py.
FAMILIES = {
    family: PodSpec(resources=resources, retries=2, secrets=secrets_of_all())
    for family, resources in {
        "baton-data": Resources(cpu=1, memory="2Gi"),
        "baton-train": Resources(cpu=2, memory="4Gi", shared_memory=True),
        "baton-serve": Resources(cpu=2, memory="8Gi", shared_memory=True),
        "baton-post-train": Resources(cpu=2, memory="8Gi", shared_memory=True),
    }.items()
}
SAVES = PodSpec(termination_grace_period_seconds=120)  # a last checkpoint; Kubernetes' own is 30 s


def in_bytes(quantity: str) -> float:
    """A quantity of memory or disk."""
    number = quantity.rstrip("kKMGTPi")
    return float(number) * UNITS[quantity[len(number) :]]


def in_gib(size: float) -> str:
    """Bytes, rounded up, as Kubernetes has them."""
    return f"{max(1, -(-int(size) // 1024**3))}Gi"
