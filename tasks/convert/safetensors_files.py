"""Read and write Hugging Face's safetensors row by row, in one file or several with an index.

    8 bytes     length of the header, little endian
    header      JSON: {name: {"dtype", "shape", "data_offsets": [start, stop]}, "__metadata__": {…}}
    data        tensor after tensor, without gaps

The safetensors library's writer needs all tensors of a file in memory, so this module writes the header
(https://github.com/huggingface/safetensors#format). Files to be read are listed by tasks/models/hf_files.py, and
validated by the library.
"""

import json
import os
from dataclasses import dataclass
from math import prod
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from baton.tasks.convert.files import OpenFiles, allocate, digest, read_into, write
from baton.tasks.models.errors import ConversionError
from baton.tasks.models.hf_files import INDEX, SINGLE, ModelFilesError, tensors_in

DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip
NAMES = {dtype: name for name, dtype in DTYPES.items()}


@dataclass(frozen=True)
class StoredTensor:
    """A tensor and the location of its bytes."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    file: str
    offset: int  # bytes from the start of the file


class StoredModel:
    """A folder's tensors by name, as tasks/models/hf_files.py reads them. Raises ConversionError if files are missing,
    damaged or contradict the index."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files = OpenFiles(folder)
        try:
            tensors = tensors_in(folder)
        except ModelFilesError as error:
            raise ConversionError(str(error)) from error
        if not tensors:
            raise ConversionError(
                f"{folder}: has neither {SINGLE} nor {INDEX} with tensors (pickled weights are not read)"
            )
        names = {tensor.file.name for tensor in tensors.values()}
        for name in sorted(names):
            _check(folder / name)
        self.names = names if names == {SINGLE} else names | {INDEX}  # files that are read
        self.tensors: dict[str, StoredTensor] = {}
        for name, tensor in tensors.items():
            if tensor.dtype not in DTYPES:
                place = folder / tensor.file.name
                raise ConversionError(f"{place}: {name} has dtype {tensor.dtype}; supported are {', '.join(DTYPES)}")
            self.tensors[name] = StoredTensor(tensor.shape, DTYPES[tensor.dtype], tensor.file.name, tensor.begin)

    def digest(self, name: str) -> str:
        """Return the BLAKE3 of a tensor's bytes."""
        tensor = self.tensors[name]
        size = prod(tensor.shape) * tensor.dtype.itemsize
        return digest(self._files.descriptor(tensor.file), tensor.offset, size)

    def rows_into(self, name: str, start: int, rows: Tensor) -> None:
        """Fill the contiguous `rows` with a tensor's rows from `start` on."""
        tensor = self.tensors[name]
        offset = tensor.offset + start * prod(tensor.shape[1:]) * tensor.dtype.itemsize
        read_into(self._files.descriptor(tensor.file), rows, offset, self.folder / tensor.file)


def _check(path: Path) -> None:
    """Check a file's lengths, offsets and shapes with the library. Raises ConversionError."""
    try:
        with safe_open(path, "pt"):
            pass
    except (SafetensorError, OSError) as error:
        raise ConversionError(f"{path}: is not a valid safetensors file ({error})") from error


class Shard:
    """A safetensors file being written. Rows may be written in any order."""

    def __init__(self, path: Path, tensors: dict[str, tuple[tuple[int, ...], torch.dtype]]) -> None:
        """Create the file with its header. Raises OSError if there is no disk space for all of it."""
        header: dict[str, object] = {"__metadata__": {"format": "pt"}}
        self._place: dict[str, tuple[int, int]] = {}  # offset, bytes per row
        size = 0
        # Wide types come first, as in the library, so that every tensor is aligned
        for name, (shape, dtype) in sorted(tensors.items(), key=lambda item: -item[1][1].itemsize):
            stop = size + prod(shape) * dtype.itemsize
            header[name] = {"dtype": NAMES[dtype], "shape": list(shape), "data_offsets": [size, stop]}
            self._place[name] = (size, prod(shape[1:]) * dtype.itemsize)
            size = stop
        encoded = json.dumps(header, separators=(",", ":")).encode()
        encoded += b" " * (-len(encoded) % 8)
        self._data = 8 + len(encoded)
        self._descriptor = allocate(path, self._data + size)
        write(self._descriptor, memoryview(len(encoded).to_bytes(8, "little") + encoded), 0)

    def write(self, name: str, start: int, content: memoryview) -> None:
        """Write a tensor's rows from `start` on."""
        first, row = self._place[name]
        write(self._descriptor, content, self._data + first + start * row)

    def close(self) -> None:
        os.close(self._descriptor)


def write_index(folder: Path, shards: dict[str, dict[str, int]]) -> None:
    """Write the index. `shards`: each tensor's size in bytes, by file name."""
    total = sum(size for sizes in shards.values() for size in sizes.values())
    weight_map = {name: file for file, sizes in shards.items() for name in sizes}
    content = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    (folder / INDEX).write_text(json.dumps(content, indent=2) + "\n")
