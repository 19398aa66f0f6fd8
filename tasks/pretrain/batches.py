"""Read batches through Megatron's data path: .bin/.idx files read by GPTDataset, one global batch per step.

Which sequences a step sees depends only on the seed and the position in the data: GPTDataset shuffles with the seed,
BlendedDataset samples from several data sets by weight, and a step reads the samples [first, first + batch). A data
parallel rank reads its share of them, and a context parallel rank its chunks of each sequence.
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

from baton.infra.storage.durable import remove
from baton.tasks.core.job import StageError
from baton.tasks.core.manifest import ArtifactError, read_manifest, verify, write_manifest
from baton.tasks.pretrain.megatron import CUDA, DEVICE
from baton.tasks.pretrain.mixture import parts_of
from baton.tasks.pretrain.spec import PretrainSpec

# isort: split
from megatron.core import parallel_state
from megatron.core.datasets import helpers
from megatron.core.datasets.blended_dataset import BlendedDataset
from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig

from baton.tasks.pretrain.attention import chunks_of_rank


class Samples(Protocol):
    """The common interface of GPTDataset and BlendedDataset, which return (sequence) tensors by name."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> dict[str, Tensor]: ...


@dataclass(frozen=True)
class _TokenizerFacts:
    """The attributes of a tokenizer that GPTDataset requires even for data that is already tokenized."""

    vocab_size: int
    eod: int = -2  # only used for Megatron's document masks; `Batch.documents` is cheaper
    pad: int = -1  # unused, since nothing is padded

    @property
    def unique_identifiers(self) -> dict[str, str]:
        return {"vocab_size": str(self.vocab_size)}


@dataclass(frozen=True)
class Batch:
    """One micro batch. Tensors are (micro batch, local sequence), except `documents`."""

    tokens: Tensor
    labels: Tensor
    loss_mask: Tensor
    position_ids: Tensor
    documents: Tensor | None = None  # (micro batch, sequence): index of each token's document in its sequence

    @property
    def attention_mask(self) -> Tensor | None:
        """The mask of the tokens of other documents, in addition to causality: (micro batch, 1, local sequence,
        sequence), bool, True where masked. It is not cached, since it is much larger than `documents`."""
        if self.documents is None:
            return None
        return _chunks(self.documents)[:, None, :, None] != self.documents[:, None, None, :]

    def on_device(self) -> "Batch":
        """Return the batch on this process's device, copied asynchronously."""
        columns = {field.name: getattr(self, field.name) for field in fields(self)}
        return Batch(
            **{name: column.to(DEVICE, non_blocking=True) for name, column in columns.items() if column is not None}
        )


@contextmanager
def index_cache(folder: Path | None) -> Iterator[Path | None]:
    """Provide the folder where Megatron caches the shuffled index to `build_datasets` in the `with` block. Collective.
    Megatron assumes that existing files are complete, but a file that a kill or power failure truncated must not be
    read. So the folder is sealed with a manifest, and deleted if it does not match. `folder` is None if rank 0's folder
    is on another machine."""
    writer = folder if dist.get_rank() == 0 else None
    if writer and writer.exists():
        try:
            verify(writer)
        except ArtifactError:
            remove(writer)
    dist.barrier()
    yield folder
    dist.barrier()
    if writer:
        write_manifest(writer, "index", {})


def build_datasets(
    spec: PretrainSpec, data: list[Path], vocab_size: int, cache: Path | None
) -> tuple[Samples, Samples]:
    """Return (train, held-out) of tokenized data sets. Training blends all of them. Held-out sequences are only from
    the first, so that runs with different blends are comparable, and none is repeated: there may be fewer of them than
    `validation_sequences`, but at least one. The shuffled index is cached in `cache`; with None, each rank builds its
    own. Raises StageError if the data sets are empty or were tokenized differently, or if a source would be repeated
    more often than its limit."""
    facts = [read_manifest(folder).facts for folder in data]
    weights = spec.data_weights or [float(fact["tokens"]) for fact in facts]
    _check(weights, spec.source_weights, data, facts)
    read = partial(
        _gpt_dataset,
        random_seed=spec.seed,
        sequence_length=spec.sequence_length,
        path_to_cache=str(cache) if cache else "",  # with None, Megatron would use a folder beside the data
        tokenizer=_TokenizerFacts(vocab_size),
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
        create_attention_mask=False,
    )
    samples = spec.samples_at(spec.steps)
    parts = parts_of(dict(zip(data, facts, strict=True)), weights, spec.mixture, spec.source_weights)
    if wrong := [message for part in parts if (message := part.too_many_epochs(samples * spec.sequence_length))]:
        raise StageError("\n".join(wrong))
    blend = [entry for part in parts for entry in part.blend()]
    train = _blended(blend, samples, read) if len(blend) > 1 else read(blend[0][0], samples)
    in_text = max((facts[0]["held_out_tokens"] - 1) // spec.sequence_length, 1)  # the last label is one token ahead
    return train, read(data[0] / "held_out", min(spec.validation_sequences, in_text))


def _check(
    weights: list[float], source_weights: list[dict[str, float]], data: list[Path], facts: list[dict[str, Any]]
) -> None:
    if len(weights) != len(data):
        raise StageError(f"data_weights {weights}: there are {len(data)} data sets; give one weight for each")
    if source_weights and len(source_weights) != len(data):
        raise StageError(f"source_weights {source_weights}: there are {len(data)} data sets; give weights for each")
    if not any(fact["tokens"] for fact in facts):
        raise StageError(f"there is no text to train on: {', '.join(map(str, data))} have 0 training tokens")
    for folder, weight, fact in zip(data, weights, facts, strict=True):
        if weight and not fact["tokens"]:
            raise StageError(f"data_weights {weights}: {folder} has 0 training tokens; set its weight to 0")
    if not facts[0]["held_out_tokens"]:
        raise StageError(f"there is no text to validate on: {data[0]} has 0 held-out tokens; hold out more of it")
    tokenizers = [str(fact["tokenizer_digest"]) for fact in facts]
    if len(set(tokenizers)) > 1:
        listing = ", ".join(f"{folder} by {digest[:12]}" for folder, digest in zip(data, tokenizers, strict=True))
        raise StageError(
            f"the data sets were tokenized by different tokenizers: {listing}; tokenize them with the same one"
        )


def _gpt_dataset(prefix: Path, samples: int, **settings: Any) -> Samples:
    """Return one data set's documents, cut into sequences and shuffled, for as many epochs as `samples` needs."""
    config = GPTDatasetConfig(blend_per_split=[([str(prefix)], None), None, None], **settings)
    dataset: Samples = BlendedMegatronDatasetBuilder(GPTDataset, [samples, 0, 0], lambda: True, config).build()[0]
    return dataset


def _blended(blend: list[tuple[Path, float]], samples: int, read: Callable[[Path, int], Samples]) -> Samples:
    """Return `samples` sequences of several data sets, in proportion to their weights at every point.

    Megatron's builder requests more samples of each data set than it uses, yet too few for small numbers; and beyond
    one epoch, GPTDataset mixes in the next epoch. So the samples are counted first."""
    drawn = np.zeros(samples, np.int16), np.zeros(samples, np.int64)  # data set, sample in it
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
    """Return this data parallel rank's micro batches of the samples [first, first + count). Each rank has the same
    number of them; the last ones are short or empty if the samples do not divide evenly."""
    ranks, rank = parallel_state.get_data_parallel_world_size(), parallel_state.get_data_parallel_rank()
    share = -(-count // (ranks * micro_batch)) * micro_batch
    span = range(first + min(rank * share, count), first + min((rank + 1) * share, count))
    return [span[start : start + micro_batch] for start in range(0, share, micro_batch)]


def micro_batches(
    dataset: Samples, first: int, count: int, micro_batch: int, end_of_text: int | None = None
) -> list[Batch]:
    """Return this rank's part of the samples [first, first + count), in host memory. Samples that only pad a micro
    batch have a loss mask of 0. With `end_of_text`, the token that ends a document, attention is masked at document
    boundaries."""
    shares = share_of_rank(first, count, micro_batch)
    return [_batch(dataset, samples, micro_batch, end_of_text) for samples in shares]


def _batch(dataset: Samples, samples: range, size: int, end_of_text: int | None) -> Batch:
    # Wrap around, since a run that rolled back needs more samples than were built
    rows = [dataset[index % len(dataset)] for index in samples]
    padding = size - len(rows)
    rows += [dataset[0]] * padding
    columns = {name: torch.stack([row[name] for row in rows]) for name in _COLUMNS}
    if padding:
        columns["loss_mask"][-padding:] = 0
    documents = None if end_of_text is None else _pinned(document_numbers(columns["tokens"], end_of_text))
    return Batch(**{name: _pinned(_chunks(column)) for name, column in columns.items()}, documents=documents)


_COLUMNS = ("tokens", "labels", "loss_mask", "position_ids")


def document_numbers(tokens: Tensor, end_of_text: int) -> Tensor:
    """Return the number of documents that end before each token, (batch, sequence). An end-of-text token belongs to the
    document that it ends."""
    ends = (tokens == end_of_text).int()
    return ends.cumsum(dim=1, dtype=torch.int32) - ends


def _pinned(column: Tensor) -> Tensor:
    """Move a column to pinned memory if there is a GPU."""
    return column.pin_memory() if CUDA else column


def _chunks(column: Tensor) -> Tensor:
    """Return this context parallel rank's chunks of (batch, sequence)."""
    ranks = parallel_state.get_context_parallel_world_size()
    if ranks == 1:
        return column
    chunks = column.chunk(2 * ranks, dim=1)
    return torch.cat([chunks[chunk] for chunk in chunks_of_rank(parallel_state.get_context_parallel_rank(), ranks)], 1)
