"""Functions that run on the ranks of a layout, to save a checkpoint of known weights, or to load and compare one.

They are in a separate module, so that a rank need not import transformers.
"""

import re
from pathlib import Path
from typing import Any

import torch
from blake3 import blake3
from torch import Tensor

from baton.tasks.models.model_spec import ModelSpec
from baton.tasks.pretrain.checkpoint import Checkpoints, TrainingState
from baton.tasks.pretrain.initialization import shards
from baton.tasks.pretrain.model import build_chunks, transformer_config
from baton.tasks.pretrain.optimizer_spec import OptimizerSpec
from baton.tasks.pretrain.process import distributed
from baton.tasks.pretrain.spec import CheckpointPolicy, PretrainSpec
from baton.tasks.pretrain.train_step import Training

# isort: split
from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing.mapping import ShardedTensor

Key = tuple[str, int | None, int | None]  # name in the families' tables, layer, expert


def key_of(shard: ShardedTensor) -> Key:
    """Return the key of the weight that a shard is a part of."""
    place = list(shard.global_offset[: shard.prepend_axis_num])
    name = re.fullmatch(r"decoder\.layers\.(?:(\d+)\.)?(.*)", shard.key)
    if name is None:
        return shard.key, None, None
    if name[1]:
        place.insert(0, int(name[1]))
    layer, expert = (*place, None)[:2]
    return f"decoder.layers.*.{name[2]}", layer, expert


def part_of(shard: ShardedTensor, whole: Tensor) -> Tensor:
    """Return the part of the weight that a shard holds."""
    offset = shard.global_offset[shard.prepend_axis_num :]
    return whole[tuple(slice(start, start + size) for start, size in zip(offset, shard.local_shape, strict=True))]


def known(key: Key, shape: tuple[int, ...]) -> Tensor:
    """Return random numbers that depend only on the weight's name and position."""
    seed = int.from_bytes(blake3(repr(key).encode()).digest(8))
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def load_and_compare(wanted: dict[str, Any], precision: str, vocabulary: int, checkpoint: Path, weights: Path) -> None:
    """Check on each rank that every part that Megatron loads equals that part of the complete weight in the file
    `weights`."""
    spec = PretrainSpec.model_validate(wanted)
    with distributed(spec.layout, spec.seed):
        expected: dict[Key, Tensor] = torch.load(weights)
        chunks = build_chunks(spec.model, transformer_config(spec.model, precision, spec.layout), vocabulary, spec.seed)
        state = {f"model{number}": chunk.sharded_state_dict() for number, chunk in enumerate(chunks)}
        loaded = dist_checkpointing.load(state, str(checkpoint))
        for number, chunk in enumerate(chunks):
            chunk.load_state_dict(loaded[f"model{number}"])
            for shard in shards(chunk):
                assert torch.equal(shard.data, part_of(shard, expected[key_of(shard)])), shard.key


def save_known(wanted: dict[str, Any], vocabulary: int, folder: Path) -> None:
    """Save a checkpoint on each rank, with weights from `known`."""
    spec = PretrainSpec.model_validate(wanted)
    with distributed(spec.layout, spec.seed):
        save(Training(spec, vocabulary), folder)


@torch.no_grad()
def save(training: Training, folder: Path) -> None:
    for chunk in training.chunks:
        for shard in shards(chunk):
            whole = known(key_of(shard), shard.global_shape[shard.prepend_axis_num :])
            shard.data.copy_(part_of(shard, whole))
    checkpoints = Checkpoints(folder, CheckpointPolicy(asynchronous=False))
    checkpoints.save(TrainingState(training.chunks, training.optimizer, training.scheduler))
    checkpoints.finish()


def spec_of(model: ModelSpec, **changes: Any) -> PretrainSpec:
    return PretrainSpec(
        model=model,
        sequence_length=32,
        global_batch=4,
        steps=8,
        optimizer=OptimizerSpec(lr=1e-3, min_lr=1e-4, warmup_steps=2),
        **changes,
    )
