"""Megatron's data path: the .bin/.idx through GPTDataset, one global batch a step.

Which sequences a step sees depends on the seed and the position in the data alone: GPTDataset
shuffles with the seed, BlendedDataset draws from several of them in their proportion, and a step
takes the samples [first, first + batch). A data parallel rank takes its share of them, a context
parallel rank its chunks of each sequence.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from tasks.job import StageError
from tasks.manifest import ArtifactError, read_manifest, remove, verify, write_manifest
from tasks.pretrain.megatron import CUDA, DEVICE
from tasks.pretrain.spec import PretrainSpec

# isort: split
from megatron.core import parallel_state
from megatron.core.datasets import helpers
from megatron.core.datasets.blended_dataset import BlendedDataset
from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig

from tasks.pretrain.attention import chunks_of_rank


class Samples(Protocol):
    """What GPTDataset and BlendedDataset have in common: (sequence) tensors by name."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> dict[str, Tensor]: ...


@dataclass(frozen=True)
class _TokenizerFacts:
    """What GPTDataset asks of a tokenizer when the data is tokenized already."""

    vocab_size: int
    eod: int = -2  # only needed to reset Megatron's own masks; `Batch.documents` does it for less
    pad: int = -1  # nothing is padded

    @property
    def unique_identifiers(self) -> dict[str, str]:
        return {"vocab_size": str(self.vocab_size)}


@dataclass(frozen=True)
class Batch:
    """One micro batch: (micro batch, local sequence) each, but for `documents`."""

    tokens: Tensor
    labels: Tensor
    loss_mask: Tensor
    position_ids: Tensor
    documents: Tensor | None = None  # (micro batch, sequence): which of its documents a token is of

    @property
    def attention_mask(self) -> Tensor | None:
        """What attention must not see beside the future: the tokens of other documents. Bool, True: hidden;
        (micro batch, 1, local sequence, sequence). Made anew each time: it is large, the documents are not."""
        if self.documents is None:
            return None
        return _chunks(self.documents)[:, None, :, None] != self.documents[:, None, None, :]

    def on_device(self) -> "Batch":
        """The same on this process's device; the copy runs beside what the device is doing."""
        columns = {field.name: getattr(self, field.name) for field in fields(self)}
        return Batch(
            **{name: column.to(DEVICE, non_blocking=True) for name, column in columns.items() if column is not None}
        )


@contextmanager
def kept_index(folder: Path) -> Iterator[Path]:
    """The folder in which Megatron keeps a shuffled index, for `build_datasets` within the block; every rank calls
    it. Megatron takes a file of it for complete if it is there: what a kill or a power cut has left of one must not
    be read, so the folder is sealed by a manifest, and emptied if it is not what that says."""
    writer = dist.get_rank() == 0
    if writer and folder.exists():
        try:
            verify(folder)
        except ArtifactError:
            remove(folder)
    dist.barrier()
    yield folder
    dist.barrier()
    if writer:
        write_manifest(folder, "index", {}, {}, {})


def build_datasets(spec: PretrainSpec, data: list[Path], vocab_size: int, cache: Path) -> tuple[Samples, Samples]:
    """(train, held-out) of tokenized data sets. Training blends all of them; the held-out sequences are of
    the first alone, so that runs with other blends compare. The shuffled index is kept in `cache`.
    Raises StageError when the data sets cannot be read by one model."""
    facts = [read_manifest(folder).facts for folder in data]
    weights = spec.data_weights or [float(each["tokens"]) for each in facts]
    _check(weights, data, facts)
    read = partial(
        _gpt_dataset,
        random_seed=spec.seed,
        sequence_length=spec.sequence_length,
        path_to_cache=str(cache),
        tokenizer=_TokenizerFacts(vocab_size),
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
        create_attention_mask=False,
    )
    samples = spec.samples_at(spec.steps)
    blend = [(folder / "train", weight) for folder, weight in zip(data, weights, strict=True) if weight > 0]
    train = _blended(blend, samples, read) if len(blend) > 1 else read(blend[0][0], samples)
    return train, read(data[0] / "held_out", spec.validation_sequences)


def _check(weights: list[float], data: list[Path], facts: list[dict[str, Any]]) -> None:
    if len(weights) != len(data):
        raise StageError(f"data_weights {weights}: there are {len(data)} data sets; one weight for each")
    if not any(each["tokens"] for each in facts):
        raise StageError(f"there is no text to train on: {', '.join(map(str, data))} have 0 training tokens")
    for folder, weight, each in zip(data, weights, facts, strict=True):
        if weight and not each["tokens"]:
            raise StageError(f"data_weights {weights}: {folder} has 0 training tokens; give it the weight 0")
    if not facts[0]["held_out_tokens"]:
        raise StageError(f"there is no text to validate on: {data[0]} has 0 held-out tokens; hold out more of it")
    tokenizers = [str(each["tokenizer_digest"]) for each in facts]
    if len(set(tokenizers)) > 1:
        told = ", ".join(f"{folder} by {digest[:12]}" for folder, digest in zip(data, tokenizers, strict=True))
        raise StageError(
            f"the data sets were tokenized by different tokenizers: {told}; tokenize them with the same one"
        )


def _gpt_dataset(prefix: Path, samples: int, **settings: Any) -> Samples:
    """One data set's documents, cut into sequences and shuffled, epoch after epoch to at least `samples`."""
    config = GPTDatasetConfig(blend_per_split=[([str(prefix)], None), None, None], **settings)
    dataset: Samples = BlendedMegatronDatasetBuilder(GPTDataset, [samples, 0, 0], lambda: True, config).build()[0]
    return dataset


def _blended(blend: list[tuple[Path, float]], samples: int, read: Callable[[Path, int], Samples]) -> Samples:
    """`samples` sequences of several data sets, in proportion to their weights at any point.

    The builder's own blend asks each data set for more than is drawn from it, and still too few where the
    numbers are small; asked for more than an epoch, GPTDataset mixes the next one in. So we count first."""
    drawn = np.zeros(samples, np.int16), np.zeros(samples, np.int64)  # the data set, and the sample in it
    total = sum(weight for _, weight in blend)
    shares = [weight / total for _, weight in blend]
    helpers.build_blending_indices(*drawn, shares, len(shares), samples, False)
    counts = np.bincount(drawn[0], minlength=len(blend)).tolist()
    datasets: list[Any] = [read(prefix, count) for (prefix, _), count in zip(blend, counts, strict=True)]
    blended: Samples = BlendedMegatronDatasetBuilder.build_generic_dataset(
        BlendedDataset, lambda: True, True, datasets, shares, samples, datasets[0].config
    )
    return blended


def share_of_rank(first: int, count: int, micro_batch: int) -> list[range]:
    """This data parallel rank's micro batches of the samples [first, first + count): equally many on
    each rank, the last of them short or empty where the samples do not go round."""
    ranks, rank = parallel_state.get_data_parallel_world_size(), parallel_state.get_data_parallel_rank()
    each = -(-count // (ranks * micro_batch)) * micro_batch
    mine = range(first + min(rank * each, count), first + min((rank + 1) * each, count))
    return [mine[start : start + micro_batch] for start in range(0, each, micro_batch)]


def micro_batches(
    dataset: Samples, first: int, count: int, micro_batch: int, end_of_text: int | None = None
) -> list[Batch]:
    """This rank's part of the samples [first, first + count), in host memory. Samples that are only there
    to fill a micro batch have a loss mask of 0. With `end_of_text`, the token that ends a document,
    attention stops at documents' boundaries."""
    shares = share_of_rank(first, count, micro_batch)
    return [_batch(dataset, samples, micro_batch, end_of_text) for samples in shares]


def _batch(dataset: Samples, samples: range, size: int, end_of_text: int | None) -> Batch:
    # a run that rolled back needs more than was asked for: it begins again
    rows = [dataset[index % len(dataset)] for index in samples]
    filling = size - len(rows)
    rows += [dataset[0]] * filling
    columns = {name: torch.stack([row[name] for row in rows]) for name in _COLUMNS}
    if filling:
        columns["loss_mask"][-filling:] = 0
    documents = None if end_of_text is None else _pinned(document_numbers(columns["tokens"], end_of_text))
    return Batch(**{name: _pinned(_chunks(column)) for name, column in columns.items()}, documents=documents)


_COLUMNS = ("tokens", "labels", "loss_mask", "position_ids")


def document_numbers(tokens: Tensor, end_of_text: int) -> Tensor:
    """How many documents ended before each token, (batch, sequence): the end of text is its document's last."""
    ends = (tokens == end_of_text).int()
    return ends.cumsum(dim=1, dtype=torch.int32) - ends


def _pinned(column: Tensor) -> Tensor:
    """In memory that a GPU can copy from by itself."""
    return column.pin_memory() if CUDA else column


def _chunks(column: Tensor) -> Tensor:
    """This context parallel rank's chunks of (batch, sequence)."""
    ranks = parallel_state.get_context_parallel_world_size()
    if ranks == 1:
        return column
    chunks = column.chunk(2 * ranks, dim=1)
    return torch.cat([chunks[chunk] for chunk in chunks_of_rank(parallel_state.get_context_parallel_rank(), ranks)], 1)
