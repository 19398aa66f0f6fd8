"""The distribution of a post-training stage over processes. It is not part of a result's identity: a run may be resumed
with another layout.
"""

from typing import Literal

from pydantic import Field

from baton.tasks.core.spec import Problem, Spec

MICRO_BATCH = 32  # default size; smaller if a process has fewer rows in a step


class TuningLayout(Spec):
    """The processes on one or more machines, and the parts of the model that each of them holds."""

    nodes: int = Field(1, ge=1, le=4096, description="Machines")
    processes: int = Field(1, ge=1, le=64, description="Processes on each machine: one per GPU")
    sharding: Literal["none", "ddp", "fsdp2"] = Field(
        "none",
        description="`none`: one process; `ddp`: each process has the full model; `fsdp2`: weights, gradients and "
        "optimizer state are sharded over the processes",
    )
    micro_batch: int | None = Field(
        None,
        ge=1,
        le=65_536,
        description="Examples in one forward and backward pass of a process; null: the largest divisor "
        f"of its share of the batch up to {MICRO_BATCH}, or {2 * MICRO_BATCH} where each step samples its completions",
    )
    gradient_checkpointing: bool | Literal["auto"] = Field(
        "auto", description="Recompute each layer in the backward pass to save memory; `auto`: on GPUs"
    )
    cpu_offload: bool = Field(
        False,
        description="With fsdp2: keep weights, gradients and optimizer state in the host's memory, where the optimizer "
        "runs; a GPU holds only the layers that it is computing",
    )

    @property
    def world(self) -> int:
        """Processes on all machines."""
        return self.nodes * self.processes

    def micro_batch_of(self, batch_size: int, at_most: int = MICRO_BATCH) -> int:
        """Return the micro batch for `batch_size` sequences per optimizer step."""
        share = max(1, batch_size // self.world)
        return self.micro_batch or next(size for size in range(min(at_most, share), 0, -1) if share % size == 0)

    def recomputes(self, gpu: bool) -> bool:
        """Return whether each layer is recomputed in the backward pass."""
        return gpu if self.gradient_checkpointing == "auto" else self.gradient_checkpointing

    def problems_with(self, batch_size: int) -> list[Problem]:
        """Return the reasons why this layout cannot split a step of `batch_size` sequences."""
        if self.cpu_offload and self.sharding != "fsdp2":
            allowed = f"false with sharding {self.sharding}; fsdp2 can offload, even with one process"
            return [Problem("cpu_offload", True, allowed)]
        several = f"nodes x processes ({self.world})" if self.nodes > 1 else f"processes ({self.processes})"
        if self.world > 1 and self.sharding == "none":
            return [Problem("sharding", self.sharding, f"ddp or fsdp2 with {several}")]
        if batch_size % self.world:
            times = f", times nodes ({self.nodes})" if self.nodes > 1 else ""
            return [Problem("processes", self.processes, f"a divisor of batch_size {batch_size}{times}")]
        if batch_size % (self.world * (self.micro_batch or 1)):
            times = f", times {several}" if self.world > 1 else ""
            return [Problem("micro_batch", self.micro_batch, f"a divisor of batch_size {batch_size}{times}")]
        return []
