"""Check whether a run fits into memory, and find the nearest layout that does."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from tasks.pretrain.accelerators import BY_NAME, accelerator
from tasks.pretrain.hardware import Machine
from tasks.pretrain.layout import Layout, layouts
from tasks.pretrain.memory import CPU, GB, GPU, Kernels, Memory, estimate
from tasks.pretrain.spec import PretrainSpec

USABLE = 0.95  # fraction of memory; the rest is for CUDA's context, NCCL's buffers and fragmentation
RECOMPUTE = ("none", "selective", "full")
MORE_NODES = (1, 2, 4, 8)  # multiples of the nodes to try, in order


@dataclass(frozen=True)
class Place:
    """The device of one process, and its memory."""

    name: str
    capacity: float  # bytes
    kernels: Kernels

    def has_room_for(self, memory: Memory) -> bool:
        return memory.total <= USABLE * self.capacity


def place_of(layout: Layout, machine: Machine) -> Place | None:
    """The device that a process of the layout runs on: the accelerator it names, or this machine's. None: its memory is
    not known."""
    if layout.device is None and not machine.gpus:
        return Place("process of this machine", machine.memory_bytes / layout.processes, CPU)
    known = BY_NAME.get(layout.device) if layout.device else accelerator(machine.gpus[0])
    return Place(known.name, known.memory_gb * GB, GPU) if known else None


def fitting(spec: PretrainSpec, vocab_size: int, place: Place) -> Layout | None:
    """The layout that fits and differs least, on the same number of nodes or a multiple of it. None if none fits."""
    wrong_with = spec.layout_check(vocab_size)
    for times in MORE_NODES:
        like = spec.layout.model_copy(update={"nodes": times * spec.layout.nodes})
        for candidate in sorted(_candidates(like, spec), key=like.distance):
            if wrong_with(candidate):
                continue
            if place.has_room_for(estimate(spec.model_copy(update={"layout": candidate}), vocab_size, place.kernels)):
                return candidate
    return None


def _candidates(like: Layout, spec: PretrainSpec) -> Iterator[Layout]:
    """Layouts with the same number of processes that take less memory; among equally near ones, the fastest first. A
    matrix is never split across nodes."""
    spreads = [
        spread
        for spread in layouts(like, spec.model)
        if spread.tensor <= like.processes and spread.virtual_pipeline <= like.virtual_pipeline
    ]
    choices = itertools.product(
        RECOMPUTE[RECOMPUTE.index(like.recompute) :],
        (True,) if like.distributed_optimizer else (True, False),
        [size for size in range(like.micro_batch, 0, -1) if like.micro_batch % size == 0],
        spreads,
    )
    for recompute, optimizer, micro_batch, spread in choices:
        changes = {"recompute": recompute, "distributed_optimizer": optimizer, "micro_batch": micro_batch}
        yield spread.model_copy(update=changes)
