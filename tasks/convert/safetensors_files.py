"""Hugging Face's weights: safetensors, one file or several with an index, read and written row by row.

    8 bytes     length of the header, little endian
    header      JSON: {name: {"dtype", "shape", "data_offsets": [start, stop]}, "__metadata__": {…}}
    data        tensor after tensor, without gaps

The library's own writer wants a whole file's tensors in memory, so the header is written here
(https://github.com/huggingface/safetensors#format); the library checks every file that is read.
"""

import json
import os
from dataclasses import dataclass
from math import prod
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from tasks.convert.errors import ConversionError
from tasks.convert.fields import read_json
from tasks.convert.files import OpenFiles, allocate, digest, read_into, write

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip
NAMES = {dtype: name for name, dtype in DTYPES.items()}


@dataclass(frozen=True)
class Stored:
    """A tensor, and where its bytes are."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    file: str
    offset: int  # bytes, from the file's beginning


class Model:
    """A folder's tensors by name. Raises ConversionError when files are missing, damaged or contradict the index."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files = OpenFiles(folder)
        self.tensors: dict[str, Stored] = {}
        listed = _listed(folder)
        self.names = {*listed, *([] if SINGLE in listed else [INDEX])}  # of the files that are read
        for file, names in listed.items():
            found = _tensors(folder / file)
            if names is not None and names != found.keys():
                words = ", ".join(sorted(names ^ found.keys())[:5])
                raise ConversionError(f"{folder / file}: has other tensors than {INDEX} says: {words}")
            self.tensors |= found

    def close(self) -> None:
        self._files.close()

    def digest(self, name: str) -> str:
        """BLAKE3 of a tensor's bytes."""
        stored = self.tensors[name]
        size = prod(stored.shape) * stored.dtype.itemsize
        return digest(self._files.descriptor(stored.file), stored.offset, size)

    def rows_into(self, name: str, start: int, rows: Tensor) -> None:
        """Fill `rows`, contiguous, from row `start` of a tensor on."""
        stored = self.tensors[name]
        offset = stored.offset + start * prod(stored.shape[1:]) * stored.dtype.itemsize
        read_into(self._files.descriptor(stored.file), rows, offset, self.folder / stored.file)


def _listed(folder: Path) -> dict[str, set[str] | None]:
    """The folder's weight files, and the tensors that the index says are in each."""
    if (folder / SINGLE).exists():  # transformers prefers it to an index, too
        return {SINGLE: None}
    index = folder / INDEX
    if not index.exists():
        raise ConversionError(f"{folder}: has neither {SINGLE} nor {INDEX} (pickled weights are not read)")
    try:
        weight_map: dict[str, str] = dict(read_json(index)["weight_map"])
        if not all(isinstance(place, str) for place in weight_map.values()):
            raise ValueError("weight_map names a file by something else than words")
    except (ConversionError, ValueError, KeyError, TypeError) as error:
        raise ConversionError(f"{index}: cannot be read ({error})") from error
    found: dict[str, set[str] | None] = {}
    for file in sorted(set(weight_map.values())):
        if Path(file).name != file:
            raise ConversionError(f"{index}: names the file {file}, outside of the folder")
        if not (folder / file).exists():
            raise ConversionError(f"{folder / file}: is missing, and {INDEX} names it")
        found[file] = {name for name, place in weight_map.items() if place == file}
    return found


def _tensors(path: Path) -> dict[str, Stored]:
    try:
        with safe_open(path, "pt"):  # it checks lengths, offsets and shapes
            pass
    except (SafetensorError, OSError) as error:
        raise ConversionError(f"{path}: is no whole safetensors file ({error})") from error
    with path.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        header = json.loads(stream.read(length))
    header.pop("__metadata__", None)
    found = {}
    for name, about in header.items():
        if about["dtype"] not in DTYPES:
            raise ConversionError(f"{path}: {name} is {about['dtype']}; known are {', '.join(DTYPES)}")
        start, _ = about["data_offsets"]
        found[name] = Stored(tuple(about["shape"]), DTYPES[about["dtype"]], path.name, 8 + length + start)
    return found


class Shard:
    """A file to be, its tensors' rows written in any order, or before, by one that was killed."""

    def __init__(self, path: Path, tensors: dict[str, tuple[tuple[int, ...], torch.dtype]]) -> None:
        """Raises OSError when there is no room for the whole file."""
        header: dict[str, object] = {"__metadata__": {"format": "pt"}}
        self._place: dict[str, tuple[int, int, int]] = {}  # first byte, bytes in a row, bytes
        size = 0
        # wide types first, as the library does: then every tensor is aligned
        for name, (shape, dtype) in sorted(tensors.items(), key=lambda item: -item[1][1].itemsize):
            stop = size + prod(shape) * dtype.itemsize
            header[name] = {"dtype": NAMES[dtype], "shape": list(shape), "data_offsets": [size, stop]}
            self._place[name] = (size, prod(shape[1:]) * dtype.itemsize, stop - size)
            size = stop
        words = json.dumps(header, separators=(",", ":")).encode()
        words += b" " * (-len(words) % 8)
        self._data = 8 + len(words)
        self._descriptor = allocate(path, self._data + size)
        write(self._descriptor, memoryview(len(words).to_bytes(8, "little") + words), 0)

    def write(self, name: str, start: int, content: memoryview) -> None:
        """A tensor's rows from `start` on."""
        first, row, _ = self._place[name]
        write(self._descriptor, content, self._data + first + start * row)

    def digest(self, name: str) -> str:
        """BLAKE3 of a tensor's bytes, as they are in the file now."""
        first, _, size = self._place[name]
        return digest(self._descriptor, self._data + first, size)

    def close(self) -> None:
        os.close(self._descriptor)


def write_index(folder: Path, shards: dict[str, dict[str, int]]) -> None:
    """`shards`: by file name, each tensor's bytes."""
    total = sum(size for sizes in shards.values() for size in sizes.values())
    weight_map = {name: file for file, sizes in shards.items() for name in sizes}
    content = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    (folder / INDEX).write_text(json.dumps(content, indent=2) + "\n")
