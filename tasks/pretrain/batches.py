"""Megatron's data path: the .bin/.idx through GPTDataset, one global batch a step.

Which sequences a step sees depends on the seed and the step alone: GPTDataset shuffles with the
seed, and step s takes the samples [s x global_batch, (s + 1) x global_batch).
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from tasks.pretrain.megatron import DEVICE
from tasks.pretrain.spec import PretrainSpec

# isort: split
from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig


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
    """Each tensor is (micro batch, sequence)."""

    tokens: Tensor
    labels: Tensor
    loss_mask: Tensor
    position_ids: Tensor


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
    sizes = [spec.steps * spec.global_batch, spec.validation_sequences, 0]
    train, held_out, _ = BlendedMegatronDatasetBuilder(GPTDataset, sizes, lambda: True, config).build()
    return train, held_out


def micro_batches(dataset: GPTDataset, first: int, count: int, micro_batch: int) -> list[Batch]:
    """The samples [first, first + count), in micro batches on this process's device."""
    batches = []
    for start in range(first, first + count, micro_batch):
        samples = [dataset[index] for index in range(start, min(start + micro_batch, first + count))]
        columns = [
            torch.stack([sample[name] for sample in samples]).to(DEVICE, non_blocking=True)
            for name in ("tokens", "labels", "loss_mask", "position_ids")
        ]
        batches.append(Batch(*columns))
    return batches
