"""Send a trainer's weights to the workers of vLLM engines in other processes by torch.distributed, with NCCL between
GPUs and Gloo between CPUs.

vLLM's own engines for this (vllm/distributed/weight_transfer, 0.27 and 0.31) need NCCL, and the trainer's side of them
differs between the two versions. The CPU build repacks its weights, and only `reload_weights` replaces them. This
protocol is the same everywhere: a bucket of tensors is a header (its size, then names, types and shapes as JSON) and
the tensors' bytes, one after the other; a header of size 0 ends the transfer.
"""

import json
from collections.abc import Iterable, Iterator
from math import prod
from socket import socket
from typing import Any

import torch
from torch.distributed import ProcessGroup
from vllm.distributed.utils import stateless_init_torch_distributed_process_group

from baton.tasks.vllm.engine_weights import named_weights
from baton.tasks.vllm.tensor_digests import Held, digests

BUCKET_BYTES = 256 << 20
DTYPE = torch.bfloat16  # the default of open_engine
SENDER = 0  # the sender's rank in the group


def open_group(address: str, port: int, rank: int, size: int, listening: socket | None = None) -> ProcessGroup:
    """Open a process group, separate from torch.distributed's, of the trainer and all workers. The trainer has rank 0,
    and its socket `listening` is on the port already, since torch would listen on all interfaces."""
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    group: ProcessGroup = stateless_init_torch_distributed_process_group(
        address, port, rank, size, backend, listen_socket=listening
    )
    return group


def send(group: ProcessGroup, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
    """Broadcast named tensors: matrices in the type of the engines' weights, the other, small ones unchanged, since
    engines keep some of them in fp32. The tensors may be gathered from ranks one at a time."""
    device = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
    for bucket in _buckets(weights, device):
        bucket.sort(key=lambda item: -item[1].itemsize)  # so that each begins at a multiple of the size of its type
        described = [[name, str(tensor.dtype).removeprefix("torch."), list(tensor.shape)] for name, tensor in bucket]
        header = torch.frombuffer(bytearray(json.dumps(described).encode()), dtype=torch.uint8).to(device)
        _broadcast(group, torch.tensor([len(header)], device=device))
        _broadcast(group, header)
        _broadcast(group, torch.cat([tensor.flatten().view(torch.uint8) for _, tensor in bucket]))
    _broadcast(group, torch.tensor([0], device=device))


def receive(group: ProcessGroup, device: torch.device) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors that `send` broadcasts."""
    while size := int(_broadcast(group, torch.zeros(1, dtype=torch.int64, device=device)).item()):
        header = _broadcast(group, torch.empty(size, dtype=torch.uint8, device=device))
        described = [(name, getattr(torch, dtype), shape) for name, dtype, shape in json.loads(bytes(header.tolist()))]
        sizes = [prod(shape) * dtype.itemsize for _, dtype, shape in described]
        values = _broadcast(group, torch.empty(sum(sizes), dtype=torch.uint8, device=device))
        for (name, dtype, shape), flat in zip(described, values.split(sizes), strict=True):
            yield name, flat.view(dtype).view(shape)


class Receiver:
    """Extends vLLM's worker (`worker_extension_cls`) with methods for `LLM.collective_rpc`."""

    rank: int  # in its engine
    device: torch.device
    reload_weights: Any
    model_runner: Any

    def join_transfer(self, address: str, port: int, first_rank: int, size: int) -> None:
        """Join the group; the engine's workers have the ranks from `first_rank` on."""
        self.transfer = open_group(address, port, first_rank + self.rank, size)

    def receive_weights(self) -> None:
        """Replace the model's weights with those that the trainer sends."""
        self.reload_weights(weights_iterator=receive(self.transfer, self.device))

    def held_weights(self) -> dict[str, Held]:
        """Return digests of the model's weights, if this worker has the entire model."""
        return digests(named_weights(self.model_runner.model))


def _broadcast(group: ProcessGroup, tensor: torch.Tensor) -> torch.Tensor:
    group.broadcast(tensor, SENDER).wait()
    return tensor


def _buckets(
    weights: Iterable[tuple[str, torch.Tensor]], device: torch.device
) -> Iterator[list[tuple[str, torch.Tensor]]]:
    bucket: list[tuple[str, torch.Tensor]] = []
    held = 0
    for name, weight in weights:
        bucket.append((name, weight.detach().to(device, DTYPE if weight.ndim > 1 else weight.dtype)))
        held += bucket[-1][1].nbytes
        if held >= BUCKET_BYTES:
            yield bucket
            bucket, held = [], 0
    if bucket:
        yield bucket
