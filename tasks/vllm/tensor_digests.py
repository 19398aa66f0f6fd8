"""Digests of named tensors, to compare weights in different processes."""

from collections.abc import Iterable
from typing import NamedTuple

import torch
from blake3 import blake3

SORTED = " (sorted)"  # suffix of the name of a tensor whose values are sorted

Named = Iterable[tuple[str, torch.Tensor]]


class Held(NamedTuple):
    """The tensors that a process holds under a name."""

    dtype: str  # `bfloat16`
    digests: list[str]  # one for each different content


def digests(named: Named) -> dict[str, Held]:
    """Return the digests of all tensors by name."""
    by_name: dict[str, Held] = {}
    for name, tensor in named:
        held = by_name.setdefault(name, Held(str(tensor.dtype).removeprefix("torch."), []))
        if (tensor_digest := digest(tensor)) not in held.digests:
            held.digests.append(tensor_digest)
    return by_name


def in_order(tensor: torch.Tensor) -> torch.Tensor:
    """Return the sorted values of a tensor, which are the same for all of its rearrangements."""
    return tensor.detach().flatten().sort().values


def digest(tensor: torch.Tensor) -> str:
    """Return the BLAKE3 digest of a tensor's values. As in a product with 1, -0.0 counts as 0.0 and subnormal numbers
    as 0."""
    values = tensor.detach().cpu().contiguous()
    values = torch.where(values.abs() < torch.finfo(values.dtype).tiny, 0.0, values)
    return blake3(values.view(torch.uint8).numpy().data, max_threads=blake3.AUTO).hexdigest()
