"""Read Megatron's torch_dist checkpoints directly from their files.

    .metadata             a pickle: each tensor's global shape and dtype, and each chunk's position in the tensor,
                          file, offset and length
    __<rank>_<n>.distcp   concatenated zip archives, each a chunk as torch.save writes it
    common.pt, metadata.json, …   everything that is not a tensor

The chunks depend on the layout that saved the checkpoint: a tensor parallel rank's rows or columns, a pipeline stage's
layers, an expert parallel rank's experts. Rows are assembled from the chunks, without process groups or Megatron.
"""

import stat
import threading
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise, product
from math import prod
from pathlib import Path

import torch
from torch import Tensor

from baton.tasks.convert.files import OpenFiles, read_into
from baton.tasks.convert.metadata import CheckpointTensor, Chunk, read_metadata
from baton.tasks.convert.saved_tensor import data_start
from baton.tasks.models.errors import ConversionError

METADATA = ".metadata"
_MOST_AXES = 4  # axes of a weight: layer, expert, rows and columns
_NO_WEIGHTS = ("optimizer.", "chained_", "rng")  # prefixes of a checkpoint's other tensors


class Checkpoint:
    """A checkpoint's tensors by name. Raises ConversionError if it is damaged or not a checkpoint."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tensors = _tensors(folder)
        self._files = OpenFiles(folder)
        self._data: dict[Chunk, int] = {}
        self._parts: dict[tuple[str, int], dict[tuple[int, ...], list[Chunk]]] = {}
        self._lock = threading.Lock()

    def weights(self) -> set[str]:
        """Return the names of the weights, without optimizer state and RNG states."""
        return {name for name in self.tensors if not name.startswith(_NO_WEIGHTS)}

    def files(self) -> set[str]:
        """Return the names of all files with tensors."""
        return {chunk.file for tensor in self.tensors.values() for chunk in tensor.chunks}

    def rows(self, name: str, index: tuple[int, ...], start: int, stop: int) -> Tensor:
        """Return rows [start, stop) of a tensor, or of its part at `index` along the leading axes."""
        tensor = self.tensors[name]
        axes = len(index)
        expected = (stop - start, *tensor.shape[axes + 1 :])
        rows: Tensor | None = None
        filled = 0
        for chunk in self._chunks_of(name, index):
            first, height = chunk.start[axes], chunk.shape[axes]
            low, high = max(start, first), min(stop, first + height)
            if low >= high:
                continue
            part = self._rows_of(chunk, tensor.dtype, index, low - first, high - first)
            if part.shape == expected:
                rows = part
            else:
                rows = torch.empty(expected, dtype=tensor.dtype) if rows is None else rows
                columns = tuple(
                    slice(at, at + size) for at, size in zip(chunk.start[axes + 1 :], part.shape[1:], strict=True)
                )
                rows[(slice(low - start, high - start), *columns)] = part
            filled += part.numel()
        if rows is None or filled != prod(expected):
            raise ConversionError(
                f"{self.folder}: of rows {start} to {stop} of {name}{list(index)} the chunks in {METADATA} have "
                f"{filled} elements, not {prod(expected)}"
            )
        return rows

    def _chunks_of(self, name: str, index: tuple[int, ...]) -> list[Chunk]:
        """Return the chunks that overlap the part at `index`. The result is cached, since a stack of experts has
        thousands of chunks, too many to search for each block of rows."""
        key = name, len(index)
        with self._lock:
            if key not in self._parts:
                self._parts[key] = _by_part(self.tensors[name], len(index))
            return self._parts[key].get(index, [])

    def _rows_of(self, chunk: Chunk, dtype: torch.dtype, index: tuple[int, ...], start: int, stop: int) -> Tensor:
        shape = chunk.shape[len(index) :]
        row = prod(shape[1:]) * dtype.itemsize
        skipped = 0  # number of parts before the one at `index`
        for at, first, size in zip(index, chunk.start, chunk.shape, strict=False):
            skipped = skipped * size + at - first
        rows = torch.empty((stop - start, *shape[1:]), dtype=dtype)
        at = self._data_start(chunk, dtype) + (skipped * shape[0] + start) * row
        read_into(self._files.descriptor(chunk.file), rows, at, self.folder / chunk.file)
        return rows

    def _data_start(self, chunk: Chunk, dtype: torch.dtype) -> int:
        """Return the offset of a chunk's data in its file. Checks the archive on first use."""
        with self._lock:
            if chunk not in self._data:
                self._data[chunk] = self._checked(chunk, dtype)
            return self._data[chunk]

    def _checked(self, chunk: Chunk, dtype: torch.dtype) -> int:
        where = f"{self.folder / chunk.file}, bytes {chunk.offset} to {chunk.offset + chunk.length}"
        saved, start = data_start(self._files.descriptor(chunk.file), chunk.offset, chunk.length, where)
        if (saved.dtype, saved.shape) != (dtype, chunk.shape):
            raise ConversionError(
                f"{where}: a tensor {list(saved.shape)} of {saved.dtype}, where {METADATA} says {list(chunk.shape)} of "
                f"{dtype}"
            )
        return start


def _by_part(tensor: CheckpointTensor, axes: int) -> dict[tuple[int, ...], list[Chunk]]:
    """Return the chunks that overlap each index along the first `axes` axes."""
    chunks: dict[tuple[int, ...], list[Chunk]] = {}
    for chunk in tensor.chunks:
        spans = zip(chunk.start[:axes], chunk.shape[:axes], tensor.shape[:axes], strict=True)
        for index in product(*(range(at, min(at + size, end)) for at, size, end in spans)):
            chunks.setdefault(index, []).append(chunk)
    return chunks


def _tensors(folder: Path) -> dict[str, CheckpointTensor]:
    path = folder / METADATA
    if not path.is_file():
        raise ConversionError(f"{folder}: has no {METADATA}, so it is not a torch_dist checkpoint")
    tensors = read_metadata(path)
    sizes: dict[str, int] = {}
    for name, tensor in tensors.items():
        for chunk in tensor.chunks:
            end = chunk.offset + chunk.length
            if chunk.file not in sizes:
                if Path(chunk.file).name != chunk.file:
                    raise ConversionError(f"{path}: puts {name} in {chunk.file}, outside of the checkpoint")
                sizes[chunk.file] = _size(folder / chunk.file)
            if end > sizes[chunk.file]:
                raise ConversionError(
                    f"{folder / chunk.file}: has {sizes[chunk.file]} bytes, but {name} should end at {end}: the file "
                    f"is truncated"
                )
    weights = {name: tensor for name, tensor in tensors.items() if not name.startswith(_NO_WEIGHTS)}
    for name, tensor in weights.items():
        if len(tensor.shape) > _MOST_AXES:  # `tiles` needs 2^axes steps per chunk
            raise ConversionError(f"{path}: {name} has {len(tensor.shape)} axes; a weight has at most {_MOST_AXES}")
        if not tiles(tensor.shape, [(chunk.start, chunk.shape) for chunk in tensor.chunks]):
            raise ConversionError(f"{path}: the chunks of {name} {list(tensor.shape)} overlap or leave gaps")
        for chunk in tensor.chunks:
            if prod(chunk.shape) * tensor.dtype.itemsize > chunk.length:
                raise ConversionError(
                    f"{path}: a chunk {list(chunk.shape)} of {name} in {tensor.dtype} cannot be stored in "
                    f"{chunk.length} bytes"
                )
    _refuse_shared_bytes(path, weights)
    return tensors


def tiles(shape: tuple[int, ...], chunks: Sequence[tuple[tuple[int, ...], tuple[int, ...]]]) -> bool:
    """Return whether the chunks (start, shape) cover a tensor exactly, without overlaps, gaps or outside elements.

    The corners of a box, with alternating signs, are the differences of its indicator function along every axis, and
    determine the function. So the chunks' indicator functions sum to the tensor's exactly if their corners sum to its
    corners. The time is linear in the number of chunks.
    """
    if any(len(start) != len(shape) or len(size) != len(shape) or 0 in size for start, size in chunks):
        return False
    corners: Counter[tuple[int, ...]] = Counter()
    for start, size, count in [*((*chunk, 1) for chunk in chunks), ((0,) * len(shape), shape, -1)]:
        for ends in product((0, 1), repeat=len(shape)):
            corner = tuple(at + end * length for at, end, length in zip(start, ends, size, strict=True))
            corners[corner] += count * (-1) ** sum(ends)
    return not any(corners.values())


def _refuse_shared_bytes(path: Path, weights: dict[str, CheckpointTensor]) -> None:
    """Raise ConversionError if two chunks overlap in a file, which torch never writes."""
    places = sorted(
        (chunk.file, chunk.offset, chunk.offset + chunk.length, name)
        for name, tensor in weights.items()
        for chunk in tensor.chunks
    )
    for (file, _, end, name), (other_file, start, _, other) in pairwise(places):
        if file == other_file and start < end:
            raise ConversionError(f"{path}: puts both {name} and {other} at byte {start} of {file}")


def _size(path: Path) -> int:
    try:
        about = path.stat()
    except FileNotFoundError:
        raise ConversionError(f"{path}: is missing, but {METADATA} lists it") from None
    except OSError as error:
        raise ConversionError(f"{path}: cannot be read ({error.strerror}), but {METADATA} lists it") from error
    if not stat.S_ISREG(about.st_mode):
        raise ConversionError(f"{path}: is not a regular file, but {METADATA} lists it")
    return about.st_size
