"""Megatron's data path: the .bin/.idx through GPTDataset, one global batch a step.

Which sequences a step sees depends on the seed and the step alone: GPTDataset shuffles with the
seed, and a step takes the samples [first, first + batch). A data parallel rank takes its share of
them, a context parallel rank its chunks of each sequence.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from tasks.pretrain.megatron import DEVICE
from tasks.pretrain.spec import PretrainSpec

# isort: split
from megatron.core import parallel_state
from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig

from tasks.pretrain.attention import chunks_of_rank


@dataclass(frozen=True)
class _TokenizerFacts:
    """What GPTDataset asks of a tokenizer when the data is tokenized already."""

    vocab_size: int
    eod: int = -2  # only needed to reset masks at document boundaries, which is off
    pad: int = -1  # nothing is padded

    @property
    def unique_identifiers(self) -> dict[str, str]:
        return {"vocab_size": str(self.vocab_size)}


@dataclass(frozen=True)
class Batch:
    """Each tensor is (micro batch, local sequence), but for the mask."""

    tokens: Tensor
    labels: Tensor
    loss_mask: Tensor
    position_ids: Tensor
    # bool, True: hidden; (micro batch, 1, local sequence, sequence); None: causality alone
    attention_mask: Tensor | None = None


def build_datasets(spec: PretrainSpec, data: Path, vocab_size: int, cache: Path) -> tuple[GPTDataset, GPTDataset]:
    """(train, held-out). The shuffled index is kept in `cache`."""
    config = GPTDatasetConfig(
        random_seed=spec.seed,
        sequence_length=spec.sequence_length,
        blend_per_split=[([str(data / "train")], None), ([str(data / "held_out")], None), None],
        path_to_cache=str(cache),
        tokenizer=_TokenizerFacts(vocab_size),
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
        create_attention_mask=False,
    )
    sizes = [spec.samples_at(spec.steps), spec.validation_sequences, 0]
    train, held_out, _ = BlendedMegatronDatasetBuilder(GPTDataset, sizes, lambda: True, config).build()
    return train, held_out


def share_of_rank(first: int, count: int, micro_batch: int) -> list[range]:
    """This data parallel rank's micro batches of the samples [first, first + count): equally many on
    each rank, the last of them short or empty where the samples do not go round."""
    ranks, rank = parallel_state.get_data_parallel_world_size(), parallel_state.get_data_parallel_rank()
    each = -(-count // (ranks * micro_batch)) * micro_batch
    mine = range(first + min(rank * each, count), first + min((rank + 1) * each, count))
    return [mine[start : start + micro_batch] for start in range(0, each, micro_batch)]


def micro_batches(dataset: GPTDataset, first: int, count: int, micro_batch: int) -> list[Batch]:
    """This rank's part of the samples [first, first + count), on its device. Samples that are only there
    to fill a micro batch have a loss mask of 0."""
    return [_batch(dataset, samples, micro_batch) for samples in share_of_rank(first, count, micro_batch)]


def _batch(dataset: GPTDataset, samples: range, size: int) -> Batch:
    rows = [dataset[index % len(dataset)] for index in samples]
    filling = size - len(rows)
    rows += [dataset[0]] * filling
    columns = {name: torch.stack([row[name] for row in rows]) for name in _COLUMNS}
    if filling:
        columns["loss_mask"][-filling:] = 0
    return Batch(*(_chunks(column).to(DEVICE, non_blocking=True) for column in columns.values()))


_COLUMNS = ("tokens", "labels", "loss_mask", "position_ids")


def _chunks(column: Tensor) -> Tensor:
    """This context parallel rank's chunks of (batch, sequence)."""
    ranks = parallel_state.get_context_parallel_world_size()
    if ranks == 1:
        return column
    chunks = column.chunk(2 * ranks, dim=1)
    return torch.cat([chunks[chunk] for chunk in chunks_of_rank(parallel_state.get_context_parallel_rank(), ranks)], 1)
