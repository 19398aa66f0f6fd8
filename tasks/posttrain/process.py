"""Functions for one of the processes of a post-training stage."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from baton.infra.process.limits import cores
from baton.tasks.core.job import Job
from baton.tasks.core.nodes import nodes_have_own_folders
from baton.tasks.hardware import cpu_matmul

T = TypeVar("T")
PIECE = 1 << 20  # characters of one value in torchrun's store

BY_TORCHRUN = "TORCHELASTIC_RUN_ID" in os.environ  # not RANK, which vLLM sets too, for its own process group
RANK = int(os.environ["RANK"]) if BY_TORCHRUN else 0
RUNNING = int(os.environ["WORLD_SIZE"]) if BY_TORCHRUN else 1  # processes


def start() -> None:
    """Set the process's share of the cores, or its GPU if torchrun has started it."""
    cpu_matmul.prepare()
    if not torch.cuda.is_available():
        processes = int(os.environ["LOCAL_WORLD_SIZE"]) if BY_TORCHRUN else 1
        torch.set_num_threads(max(1, cores() // processes))  # torch sees the machine's cores, not a container's limit
    elif BY_TORCHRUN:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))


def is_first() -> bool:
    """Return whether this is rank 0, which alone scores completions and writes metrics and output."""
    return RANK == 0


def lacks_shared_folder(job: Job) -> bool:
    """Return whether nodes that share no folder run this job."""
    return BY_TORCHRUN and nodes_have_own_folders(job)


def is_elsewhere(job: Job) -> bool:
    """Return whether this process is on another node than rank 0 and shares no folder with it."""
    return lacks_shared_folder(job) and int(os.environ["LOCAL_WORLD_SIZE"]) <= RANK


def hand_out(name: str, text: str) -> None:
    """Put rank 0's text into torchrun's store, for ranks that share neither a process group nor a folder with it."""
    store = _store()
    for start in range(0, len(text), PIECE):
        store.set(f"{name}/{start}", text[start : start + PIECE])
    store.set(name, str(len(text)))


def handed_out(name: str) -> bytes:
    """Wait for the text that rank 0 hands out, and return it."""
    store = _store()
    while not store.check([name]):
        time.sleep(1)
    return b"".join(store.get(f"{name}/{start}") for start in range(0, int(store.get(name)), PIECE))


def _store() -> TCPStore:
    return TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)


@contextmanager
def alone() -> Iterator[None]:
    """Hide torchrun's store in this context, since a process group of one process would join it and wait."""
    stores = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith("TORCHELASTIC_")}
    try:
        yield
    finally:
        os.environ.update(stores)


def from_first(value: Any) -> Any:
    """Return rank 0's value on every rank. Collective."""
    if not BY_TORCHRUN:
        return value
    values = [value]
    dist.broadcast_object_list(values)
    return values[0]


def on_first(work: Callable[[list[T]], list[Any]], items: list[T]) -> list[Any]:
    """Let rank 0 do the work for the items of all ranks, in the ranks' order, and return the results of this rank's
    items. Collective."""
    if not BY_TORCHRUN:
        return work(items)
    parts: list[Any] = [None] * dist.get_world_size()
    dist.gather_object(items, parts if is_first() else None)

    def shares() -> list[list[Any]]:
        results = iter(work([item for part in parts for item in part]))
        return [list(islice(results, len(part))) for part in parts]

    return list(from_first(shares() if is_first() else None)[RANK])


def any_rank(condition: bool) -> bool:
    """Return whether the condition holds on any rank. Collective."""
    if not BY_TORCHRUN:
        return condition
    device = "cuda" if torch.cuda.is_available() else "cpu"
    flag = torch.tensor([condition], dtype=torch.int32, device=device)
    dist.all_reduce(flag, op=dist.ReduceOp.MAX)
    return bool(flag.item())


def barrier() -> None:
    """Wait for all ranks."""
    if BY_TORCHRUN:
        dist.barrier()
