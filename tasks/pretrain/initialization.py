"""Initialize weights independently of the parallel layout.

Each tensor has its own random generator, seeded with the run's seed and the tensor's global name, and every rank uses
its part of the full tensor. So a run starts from the same model under every layout, and layouts can be validated by
comparing losses.

Weights are normally distributed with init_std, or, for linear_proj and linear_fc2, which write to the residual stream,
with init_std / sqrt(2 x layers) (GPT-2). Norms are 1 and biases 0.
"""

import math
from collections.abc import Iterator

import torch
from blake3 import blake3
from torch import Tensor

from baton.tasks.models.model_spec import ModelSpec
from baton.tasks.pretrain import megatron  # noqa: F401  before megatron.core

# isort: split
from megatron.core.dist_checkpointing.mapping import ShardedTensor, apply_factories
from megatron.core.models.gpt.gpt_model import GPTModel

NORMS = ("norm.weight", "layer_norm_weight")  # the second: fused with a linear layer in checkpoints
INTO_RESIDUAL = ("linear_proj.weight", "linear_fc2.weight")


def shards(model: GPTModel) -> Iterator[ShardedTensor]:
    """Yield a model's weights as shards of global tensors; their `data` are views of the parameters."""
    state = model.sharded_state_dict()
    apply_factories(state)
    pending = list(state.values())
    while pending:
        item = pending.pop(0)
        if isinstance(item, ShardedTensor):
            yield item
        elif isinstance(item, (list, dict)):
            pending[:0] = list(item.values() if isinstance(item, dict) else item)


@torch.no_grad()
def initialize(model: GPTModel, spec: ModelSpec, seed: int) -> None:
    """Initialize the weights of a model, or of a rank's part of it."""
    for shard in shards(model):
        layer = shard.global_offset[: shard.prepend_axis_num]  # indices of the layer and the expert, if any
        full = _initial(spec, seed, shard.key, layer, shard.global_shape[shard.prepend_axis_num :])
        offset = shard.global_offset[shard.prepend_axis_num :]
        part = tuple(slice(start, start + size) for start, size in zip(offset, shard.local_shape, strict=True))
        shard.data.copy_(full[part])


def _initial(spec: ModelSpec, seed: int, name: str, place: tuple[int, ...], shape: tuple[int, ...]) -> Tensor:
    if name.endswith(NORMS):
        return torch.ones(shape)
    if name.endswith("bias"):
        return torch.zeros(shape)
    std = spec.init_std / math.sqrt(2 * spec.layers) if name.endswith(INTO_RESIDUAL) else spec.init_std
    digest = blake3(f"{seed}/{name}/{'/'.join(map(str, place))}".encode()).digest(8)
    generator = torch.Generator().manual_seed(int.from_bytes(digest))
    return torch.empty(shape).normal_(0.0, std, generator=generator)
