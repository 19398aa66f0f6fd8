"""Read the pickles in a Megatron checkpoint without running anything that is in them.

A pickle names functions and classes to be called. Here a name is looked up in a short list, and
whatever is not on it ends the reading: `.metadata` may name the classes of torch's checkpoint
metadata, and a saved tensor's `data.pkl` those by which torch.save describes a tensor, which is not
built either: what is wanted is where its numbers lie.
"""

import io
import pickle
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path, PosixPath
from typing import Any

import torch
from torch.distributed.checkpoint import filesystem, metadata, planner
from torch.serialization import _get_layout

from tasks.convert.errors import ConversionError

METADATA_NAMES = {
    **{
        (metadata.__name__, name): getattr(metadata, name)
        for name in (
            "Metadata", "TensorStorageMetadata", "BytesStorageMetadata", "ChunkStorageMetadata", "TensorProperties",
            "MetadataIndex", "StorageMeta", "_MEM_FORMAT_ENCODING",
        )
    },
    **{
        (planner.__name__, name): getattr(planner, name)
        for name in ("SavePlan", "WriteItem", "WriteItemType", "TensorWriteData", "BytesIOWriteData")
    },
    (filesystem.__name__, "_StorageInfo"): filesystem._StorageInfo,
    ("torch", "Size"): torch.Size,
    ("torch.serialization", "_get_layout"): _get_layout,
    ("collections", "OrderedDict"): OrderedDict,
    # a path, in which only its words are of use
    ("pathlib", "PosixPath"): PosixPath,
    ("pathlib", "Path"): PosixPath,
}  # fmt: skip


@dataclass(frozen=True)
class Described:
    """A tensor as torch.save describes it."""

    dtype: torch.dtype
    record: str  # of the zip archive: data/<record>
    offset: int  # in elements, within the record
    shape: tuple[int, ...]
    stride: tuple[int, ...]


class _Listed(pickle.Unpickler):
    """An unpickler that knows the names on a list, and torch's dtypes."""

    def __init__(self, stream: io.BufferedIOBase, names: dict[tuple[str, str], Any], where: str) -> None:
        super().__init__(stream)
        self._names, self._where = names, where

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in self._names:
            return self._names[module, name]
        if module == "torch" and isinstance(value := getattr(torch, name, None), torch.dtype):
            return value
        raise ConversionError(f"{self._where} is a pickle that asks for {module}.{name}; it was not run")

    def persistent_load(self, words: Any) -> Any:
        """torch.save puts a storage in as ("storage", its type, record, device, number of elements)."""
        return words


def read_metadata(path: Path) -> metadata.Metadata:
    """A checkpoint's `.metadata`. Raises ConversionError, and pickle's own errors when it is damaged."""
    with path.open("rb") as stream:
        found = _Listed(stream, METADATA_NAMES, str(path)).load()
    if not isinstance(found, metadata.Metadata):
        raise ConversionError(f"{path} has a {type(found).__name__} in it, not a checkpoint's metadata")
    return found


def read_description(content: bytes, where: str) -> Described:
    """A saved tensor's `data.pkl`."""
    found = _Listed(io.BytesIO(content), _TENSOR_NAMES, where).load()
    if not isinstance(found, Described):
        raise ConversionError(f"{where} has a {type(found).__name__} in it, not a tensor")
    return found


def _described(storage: Any, offset: int, shape: Any, stride: Any, *rest: Any) -> Described:
    """In place of torch._utils._rebuild_tensor_v2."""
    kind, dtype, record = storage[:3]
    if kind != "storage" or not isinstance(dtype, torch.dtype):
        raise ConversionError(f"a saved tensor has {kind} of {dtype} for its storage")
    return Described(dtype, str(record), int(offset), tuple(map(int, shape)), tuple(map(int, stride)))


def _parameter(data: Described, *rest: Any) -> Described:
    """In place of torch._utils._rebuild_parameter."""
    return data


_STORAGES = {
    "FloatStorage": torch.float32, "HalfStorage": torch.float16, "BFloat16Storage": torch.bfloat16,
    "DoubleStorage": torch.float64, "ByteStorage": torch.uint8, "CharStorage": torch.int8,
    "ShortStorage": torch.int16, "IntStorage": torch.int32, "LongStorage": torch.int64, "BoolStorage": torch.bool,
}  # fmt: skip

_TENSOR_NAMES: dict[tuple[str, str], Any] = {
    ("torch._utils", "_rebuild_tensor_v2"): _described,
    ("torch._utils", "_rebuild_parameter"): _parameter,
    ("collections", "OrderedDict"): OrderedDict,
    **{("torch", name): dtype for name, dtype in _STORAGES.items()},
}
