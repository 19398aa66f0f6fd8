"""Write Megatron's torch_dist format a few rows at a time.

torch.save under skip_data writes an archive without the tensor's data. The bytes before and after the data are copied
around each tensor's rows. So the file equals one written by the installed torch, which Megatron reads.
"""

import json
import os
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from math import prod
from pathlib import Path

import torch
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    STORAGE_TYPES,
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.serialization import skip_data

from baton.tasks.convert.files import allocate, write
from baton.tasks.convert.mapping import Weight
from baton.tasks.convert.saved_tensor import data_start
from baton.tasks.convert.torch_dist import METADATA
from baton.tasks.pretrain.canonical import MetadataPickler

# Backends that wrote the checkpoint, for Megatron's dist_checkpointing
ABOUT = {"sharded_backend": "torch_dist", "sharded_backend_version": 1, "common_backend": "torch",
         "common_backend_version": 1}  # fmt: skip
# Megatron's modules also load an extra state, which is None without fp8
NO_STATE = "no_state.distcp"
_COMMON, _ABOUT = "common.pt", "metadata.json"
SMALL = (NO_STATE, _COMMON, _ABOUT, METADATA)  # the files of `write_metadata`
STATELESS = ("embedding.word_embeddings", "output_layer", "mlp.router")  # modules without extra state


@dataclass(frozen=True)
class Place:
    """The location of one weight's archive, in bytes."""

    file: str
    offset: int
    length: int
    data: int  # offset of the weight's data in the file
    row: int


@cache
def archive(shape: tuple[int, ...], dtype: torch.dtype) -> tuple[bytes, bytes]:
    """Return the bytes before and after the data in a tensor's archive, as the installed torch writes them."""
    with tempfile.TemporaryDirectory(prefix="baton-") as folder:
        path = Path(folder) / "tensor.pt"
        with skip_data():
            torch.save(torch.empty(shape, dtype=dtype), path)  # the tensor's memory is never touched
        with path.open("rb") as stream:
            start = data_start(stream.fileno(), 0, path.stat().st_size, str(path))[1]
            head = stream.read(start)
            stream.seek(start + prod(shape) * dtype.itemsize)
            return head, stream.read()


def chunk_shape(weight: Weight) -> tuple[int, ...]:
    """Return a weight's shape as a chunk of its stacked tensor."""
    return (*[1] * len(weight.index), *weight.shape)


class DistFile:
    """A .distcp file being written. Rows may be written in any order."""

    def __init__(self, path: Path, weights: Iterable[tuple[Weight, torch.dtype]]) -> None:
        """Create the file. Raises OSError if there is no disk space for all of it."""
        self.places: dict[str, Place] = {}
        pieces = []
        offset = 0
        for weight, dtype in weights:
            head, tail = archive(chunk_shape(weight), dtype)
            size = prod(weight.shape) * dtype.itemsize
            length = len(head) + size + len(tail)
            row = prod(weight.shape[1:]) * dtype.itemsize
            self.places[weight.name] = Place(path.name, offset, length, offset + len(head), row)
            pieces += [(offset, head), (offset + len(head) + size, tail)]
            offset += length
        self._descriptor = allocate(path, offset)
        for at, content in pieces:
            write(self._descriptor, memoryview(content), at)

    def write(self, weight: Weight, start: int, content: memoryview) -> None:
        """Write a weight's rows from `start` on."""
        place = self.places[weight.name]
        write(self._descriptor, content, place.data + start * place.row)

    def close(self) -> None:
        os.close(self._descriptor)


def extra_states(weights: Iterable[Weight]) -> Iterator[str]:
    """Yield the names of the extra states that Megatron's local and Transformer Engine layers load."""
    for weight in weights:
        module = weight.key.rpartition(".")[0]
        if module.endswith(STATELESS):
            continue
        place = ".".join(map(str, weight.index or (0,))) + "_" + ".".join(map(str, weight.leading or (1,)))
        yield f"{module}._extra_state/shard_{place}"
        if module.endswith("self_attention.linear_proj"):  # core_attention has no weights
            yield f"{module.removesuffix('linear_proj')}core_attention._extra_state/shard_{place}"


def weights_file(number: int) -> str:
    return f"__0_{number}.distcp"


def write_metadata(folder: Path, weights: Iterable[tuple[Weight, torch.dtype]], places: dict[str, Place]) -> None:
    """Write the files that make a folder of .distcp files a checkpoint."""
    weights = list(weights)
    tensors: dict[str, STORAGE_TYPES] = {}
    chunks: dict[str, list[ChunkStorageMetadata]] = {}
    storage = {}
    for weight, dtype in weights:
        if weight.key not in tensors:
            size = torch.Size(weight.leading + weight.shape)
            chunks[weight.key] = []
            tensors[weight.key] = TensorStorageMetadata(TensorProperties(dtype=dtype), size, chunks[weight.key])
        offsets = torch.Size((*weight.index, *[0] * len(weight.shape)))
        chunks[weight.key].append(ChunkStorageMetadata(offsets, torch.Size(chunk_shape(weight))))
        place = places[weight.name]
        storage[MetadataIndex(weight.key, offsets)] = _StorageInfo(place.file, place.offset, place.length)
    torch.save([None], folder / NO_STATE)
    none = _StorageInfo(NO_STATE, 0, (folder / NO_STATE).stat().st_size)
    for name in extra_states(weight for weight, _ in weights):
        tensors[name] = BytesStorageMetadata()
        storage[MetadataIndex(name)] = none
    torch.save({}, folder / _COMMON)
    (folder / _ABOUT).write_text(json.dumps(ABOUT))
    with (folder / METADATA).open("wb") as stream:
        MetadataPickler(stream).dump(Metadata(tensors, storage_data=storage, version="1.0.0"))
