"""The memory that a process needs, and the memory of the device that it runs on.

The estimates themselves are in the stages' packages: tasks/pretrain/memory.py and tasks/posttrain/memory.py.
"""

from dataclasses import dataclass, field

from baton.infra.text import gigabytes
from baton.tasks.hardware.accelerators import BY_NAME, accelerator
from baton.tasks.hardware.machine import Machine

GB = 1e9
USABLE = 0.95  # fraction of memory; the rest is for CUDA's context, NCCL's buffers and fragmentation


@dataclass(frozen=True)
class Memory:
    """Bytes in one process on its device."""

    weights: int
    gradients: int
    optimizer: int
    activations: int
    host: int = field(default=0, kw_only=True)  # offloaded from the device, and not in `total`

    @property
    def total(self) -> int:
        return self.weights + self.gradients + self.optimizer + self.activations

    def breakdown(self) -> str:
        """weights 1.2 GB, gradients 2.4 GB, …"""
        names = ("weights", "gradients", "optimizer", "activations")
        return ", ".join(f"{name} {gigabytes(getattr(self, name))}" for name in names)


@dataclass(frozen=True)
class Kernels:
    """The tensors that a device's kernels save for the backward pass, and their temporaries."""

    fused_swiglu: bool  # saves only its input; otherwise also silu(gate)
    attention_rows: int  # queries whose scores are in memory at a time; 0: scores stay on the chip
    logits: int  # bytes in memory at a time
    logits_in_fp32: int  # bytes of them in fp32, in addition to 16-bit ones


GPU = Kernels(fused_swiglu=True, attention_rows=0, logits=2**30, logits_in_fp32=2**31)
CPU = Kernels(fused_swiglu=False, attention_rows=128, logits=2**26, logits_in_fp32=2**21)  # in the cache


@dataclass(frozen=True)
class Place:
    """The device of one process, and its memory."""

    name: str
    capacity: float  # bytes
    kernels: Kernels

    def has_room_for(self, memory: Memory) -> bool:
        return memory.total <= USABLE * self.capacity


def place_of(device: str | None, processes: int, machine: Machine) -> Place | None:
    """The device that each of a machine's processes runs on: the named accelerator, or this machine's. None: its memory
    is not known."""
    if device is None and not machine.gpus:
        return Place("process of this machine", machine.memory_bytes / processes, CPU)
    known = BY_NAME.get(device) if device else accelerator(machine.gpus[0])
    return Place(known.name, known.memory_gb * GB, GPU) if known else None
