"""Express AdamW's state as shards of global tensors, for all of Megatron's optimizers and layouts.

A rank holds the elements [start, stop) of a weight's state: all of them or, with the distributed optimizer, its share.
Such a range consists of a few boxes of the weight, which torch's distributed checkpoint can write and read. So a save
gathers nothing, every data parallel rank writes its own share, and state saved under one layout loads under any other,
with or without the distributed optimizer.

Megatron's `optimizer.sharded_state_dict` is not used, because in 0.16.1
- the distributed optimizer gathers the full state on every data parallel rank for each save (`fully_reshardable`), and
  when loading into torch's AdamW it gives all parameters the same `step` tensor, which then advances once per
  parameter: wrong losses without an error;
- the parameter groups, which it also saves, differ between expert parallel size 1 and 2.
This module can be removed when both are fixed; tests/pretrain/test_reshard.py checks whether they are.

Parameter groups are not saved: they follow from the spec and the schedule.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor

from baton.tasks.core.job import StageError
from baton.tasks.pretrain.megatron_hooks import owned_range

# isort: split
from megatron.core.dist_checkpointing.dict_utils import nested_values
from megatron.core.dist_checkpointing.mapping import ShardedTensor, ShardedTensorFactory
from megatron.core.optimizer import ChainedOptimizer, MegatronOptimizer
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
from megatron.core.optimizer.optimizer import Float16OptimizerWithFloat16Params

MOMENTS = ("exp_avg", "exp_avg_sq")


@dataclass(frozen=True)
class Share:
    """This rank's state of one weight, for the elements [start, stop) of the flattened weight."""

    weight: Tensor  # the model's weight
    main: Tensor  # the tensor that AdamW updates: the weight itself, a view of it, or an fp32 copy
    start: int
    stop: int
    adamw: torch.optim.Optimizer
    distributed: bool  # whether it is sharded over the data parallel ranks

    def tensors(self) -> dict[str, Tensor]:
        """Return the flattened state by name, as views of AdamW's own tensors, so that loading into them takes
        effect."""
        tensors = {name: self.adamw.state[self.main][name] for name in MOMENTS}
        if self.main.dtype != self.weight.dtype:
            tensors["fp32_param"] = self.main.detach()
        return {name: tensor.view(-1) for name, tensor in tensors.items()}


def shares(optimizer: MegatronOptimizer) -> Iterator[Share]:
    for part in optimizer.chained_optimizers if isinstance(optimizer, ChainedOptimizer) else [optimizer]:
        distributed = isinstance(part, DistributedOptimizer)
        for weight, main in _weights(part):
            start, stop = owned_range(part, weight) if distributed else (0, weight.numel())
            yield Share(weight, main, start, stop, part.optimizer, distributed)


def _weights(part: MegatronOptimizer) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield pairs of the model's weight and the tensor that AdamW updates."""
    if isinstance(part, DistributedOptimizer):
        groups = [
            (part.model_float16_groups, part.shard_fp32_from_float16_groups),
            (part.model_fp32_groups, part.shard_fp32_groups),
        ]
    elif isinstance(part, Float16OptimizerWithFloat16Params):
        groups = [
            (part.float16_groups, part.fp32_from_float16_groups),
            (part.fp32_from_fp32_groups, part.fp32_from_fp32_groups),
        ]
    else:
        groups = [([part.get_parameters()], [part.get_parameters()])]
    for weights, mains in groups:
        for weight_group, main_group in zip(weights, mains, strict=True):
            yield from zip(weight_group, main_group, strict=True)


def updates(optimizer: MegatronOptimizer) -> int:
    """Return the number of AdamW updates so far."""
    for share in shares(optimizer):
        group = share.adamw.param_groups[0]
        return int(group["step"] if "step" in group else share.adamw.state[share.main].get("step", 0))
    return 0


def prepare(optimizer: MegatronOptimizer, count: int) -> None:
    """Create AdamW's state where it does not exist yet, and set the number of updates."""
    for share in shares(optimizer):
        state = share.adamw.state[share.main]
        for name in MOMENTS:
            if name not in state:
                state[name] = torch.zeros_like(share.main)
        if not isinstance(share.adamw, torch.optim.Adam):  # Transformer Engine's optimizer, which counts per group
            for group in share.adamw.param_groups:
                group["step"] = count
            continue
        group = share.adamw.param_groups[0]
        device = share.main.device if group["fused"] or group["capturable"] else torch.device("cpu")
        # A separate tensor for each parameter, since AdamW increments it in place
        state["step"] = torch.tensor(float(count), device=device)


def sharded_state(optimizer: MegatronOptimizer, models: Iterable[dict[str, Any]]) -> dict[str, list[ShardedTensor]]:
    """Return the state as shards of the global weights. `models`: the sharded state dicts of the model's chunks."""
    wholes = {
        id(item.data): item
        for model in models
        for item in nested_values(model)
        if isinstance(item, (ShardedTensor, ShardedTensorFactory))
    }
    return {
        f"{name}.{number}": [
            box
            for part in regular(wholes[id(share.weight)])
            for box in _boxes(part, share, f"optimizer.state.{name}", tensor)
        ]
        for number, share in enumerate(shares(optimizer))
        for name, tensor in share.tensors().items()
    }


def regular(tensor: ShardedTensor | ShardedTensorFactory) -> Iterator[ShardedTensor]:
    """Yield a weight's parts as views of it: one, or two for SwiGLU's gate and up. Raises StageError for a weight that
    Megatron stores in another order, whose moments would be misplaced; no supported family has such a weight."""
    for part in nested_values(tensor.build()) if isinstance(tensor, ShardedTensorFactory) else [tensor]:
        if part.data.untyped_storage().data_ptr() != tensor.data.untyped_storage().data_ptr():
            raise StageError(
                f"{part.key}: Megatron stores this weight in another order than in memory, so its optimizer state "
                "cannot be checkpointed; choose another pretrain.model.family"
            )
        yield part


def _boxes(part: ShardedTensor, share: Share, prefix: str, tensor: Tensor) -> Iterator[ShardedTensor]:
    """Yield `tensor`, the flattened state of the weight's elements [share.start, share.stop), as boxes of `part`."""
    first = part.data.storage_offset() - share.weight.storage_offset()  # the part's first element in the weight
    start, stop = max(share.start, first), min(share.stop, first + part.data.numel())
    position = start - share.start
    shape = (1,) * part.prepend_axis_num + tuple(part.local_shape)
    # Each data parallel rank has its own share; the other coordinates identify copies
    replica = (*part.replica_id[:2], 0) if share.distributed else part.replica_id
    for offset, size in boxes(start - first, stop - first, shape):
        yield ShardedTensor(
            key=f"{prefix}.{part.key}",
            data=tensor[position : position + prod(size)].view(size),
            dtype=tensor.dtype,
            local_shape=size,
            global_shape=tuple(part.global_shape),
            global_offset=tuple(map(sum, zip(part.global_offset, offset, strict=True))),
            axis_fragmentations=None,  # not a regular grid
            replica_id=replica,
        )
        position += prod(size)


def boxes(start: int, stop: int, shape: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Yield the elements [start, stop) of a tensor in row-major order, as boxes (offset, size) in that order."""
    if start >= stop:
        return
    if not shape:
        yield (), ()
        return
    row = prod(shape[1:])
    first, last = -(-start // row), stop // row  # the complete rows are [first, last)
    if first > last:  # within one row
        yield from _in_row(last, start, stop, row, shape)
        return
    yield from _in_row(first - 1, start, first * row, row, shape)
    if first < last:
        yield (first, *(0 for _ in shape[1:])), (last - first, *shape[1:])
    yield from _in_row(last, last * row, stop, row, shape)


def _in_row(
    index: int, start: int, stop: int, row: int, shape: tuple[int, ...]
) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    for offset, size in boxes(start - index * row, stop - index * row, shape[1:]):
        yield (index, *offset), (1, *size)
