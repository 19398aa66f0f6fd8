"""AdamW's state as parts of whole tensors, alike for each of Megatron's optimizers and under any layout.

A rank holds the elements [start, stop) of a weight's state: all of the weight, or, with the distributed
optimizer, its share of them. Such a range is a few boxes of the weight, and boxes are what torch's
distributed checkpoint writes and reads. So nothing is gathered for a save, every data parallel rank
writes its own share, and what was saved under one layout is read under any other, with and without
the distributed optimizer.

It is done here and not with Megatron's `optimizer.sharded_state_dict` because in 0.16.1
- the distributed optimizer gathers the whole state on every data parallel rank for each save
  (`fully_reshardable`), and when it loads over torch's AdamW it gives all parameters one and the same
  `step` tensor, which then advances once for each of them: wrong losses, and no error;
- the parameter groups, which it saves too, are others with expert parallel size 1 than with 2.
This module can go when both are mended; tests/pretrain/test_reshard.py says whether they are.

The parameter groups are not saved at all: they follow from the spec and the schedule.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor

from tasks.job import StageError
from tasks.pretrain import megatron  # noqa: F401  before megatron.core

# isort: split
from megatron.core.dist_checkpointing.dict_utils import nested_values
from megatron.core.dist_checkpointing.mapping import ShardedTensor, ShardedTensorFactory
from megatron.core.optimizer import ChainedOptimizer, MegatronOptimizer
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
from megatron.core.optimizer.optimizer import Float16OptimizerWithFloat16Params

MOMENTS = ("exp_avg", "exp_avg_sq")


@dataclass(frozen=True)
class Share:
    """What this rank holds of one weight's state: that of its elements [start, stop), flattened."""

    weight: Tensor  # the model's
    main: Tensor  # what AdamW updates: the weight itself, a view of it, or a copy in fp32
    start: int
    stop: int
    adamw: torch.optim.Optimizer
    distributed: bool  # over the data parallel ranks

    def tensors(self) -> dict[str, Tensor]:
        """The state by name, flat. In AdamW's own memory: what is loaded into it is in effect."""
        found = {name: self.adamw.state[self.main][name] for name in MOMENTS}
        if self.main.dtype != self.weight.dtype:
            found["fp32_param"] = self.main.detach()
        return {name: tensor.view(-1) for name, tensor in found.items()}


def shares(optimizer: MegatronOptimizer) -> Iterator[Share]:
    for part in optimizer.chained_optimizers if isinstance(optimizer, ChainedOptimizer) else [optimizer]:
        distributed = isinstance(part, DistributedOptimizer)
        for weight, main in _weights(part):
            owned = part._get_model_param_range_map(weight)["param"] if distributed else None
            start, stop = (owned.start, owned.end) if owned else (0, weight.numel())
            yield Share(weight, main, start, stop, part.optimizer, distributed)


def _weights(part: MegatronOptimizer) -> Iterator[tuple[Tensor, Tensor]]:
    """(the model's weight, what AdamW updates)"""
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
    """How often AdamW has updated the weights."""
    for share in shares(optimizer):
        group = share.adamw.param_groups[0]
        return int(group["step"] if "step" in group else share.adamw.state[share.main].get("step", 0))
    return 0


def prepare(optimizer: MegatronOptimizer, count: int) -> None:
    """Make AdamW's state where there is none yet, and set how often it has updated the weights."""
    for share in shares(optimizer):
        state = share.adamw.state[share.main]
        for name in MOMENTS:
            if name not in state:
                state[name] = torch.zeros_like(share.main)
        if not isinstance(share.adamw, torch.optim.Adam):  # Transformer Engine's counts by group
            for group in share.adamw.param_groups:
                group["step"] = count
            continue
        group = share.adamw.param_groups[0]
        device = share.main.device if group["fused"] or group["capturable"] else torch.device("cpu")
        # of its own for each parameter: AdamW advances it in place
        state["step"] = torch.tensor(float(count), device=device)


def sharded_state(optimizer: MegatronOptimizer, models: Iterable[dict[str, Any]]) -> dict[str, list[ShardedTensor]]:
    """The state in terms of the whole weights; `models` are the sharded state dicts of the model's chunks."""
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


def regular(whole: ShardedTensor | ShardedTensorFactory) -> Iterator[ShardedTensor]:
    """A weight's parts, each a view of it: one, or two for SwiGLU's, which holds gate and up. That is so for every
    family here. Raises StageError for one that Megatron stores in another order: its moments would be misplaced."""
    for part in nested_values(whole.build()) if isinstance(whole, ShardedTensorFactory) else [whole]:
        if part.data.untyped_storage().data_ptr() != whole.data.untyped_storage().data_ptr():
            raise StageError(
                f"{part.key}: Megatron stores this weight in another order than it holds it in, and the optimizer's "
                "moments would be misplaced: it cannot be checkpointed; choose another pretrain.model.family"
            )
        yield part


def _boxes(part: ShardedTensor, share: Share, prefix: str, tensor: Tensor) -> Iterator[ShardedTensor]:
    """Where `tensor`, the flat state of the weight's elements [share.start, share.stop), is in `part`."""
    first = part.data.storage_offset() - share.weight.storage_offset()  # of the part's elements in the weight
    start, stop = max(share.start, first), min(share.stop, first + part.data.numel())
    position = start - share.start
    shape = (1,) * part.prepend_axis_num + tuple(part.local_shape)
    # each data parallel rank has a share of its own; the other coordinates say who has a copy of it
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
    """The elements [start, stop) of a tensor in row-major order as boxes (offset, size), in that order."""
    if start >= stop:
        return
    if not shape:
        yield (), ()
        return
    row = prod(shape[1:])
    first, last = -(-start // row), stop // row  # the whole rows are [first, last)
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
