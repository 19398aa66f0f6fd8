"""Megatron's dist_checkpointing in its torch_dist format, read straight from its files.

    .metadata             a pickle: each tensor's whole shape and dtype, its chunks' places in it, and each
                          chunk's file, offset and length
    __<rank>_<n>.distcp   one zip archive after the other, each a chunk as torch.save writes it
    common.pt, metadata.json, …   what is no tensor

The chunks are those of the layout that saved: a tensor parallel rank's rows or columns, a pipeline
stage's layers, an expert parallel rank's experts. Here rows are put together from whichever chunks
there are, without process groups and without Megatron.
"""

import io
import os
import pickle
import threading
import zipfile
from dataclasses import dataclass, field
from itertools import product
from math import prod
from pathlib import Path

import torch
from torch import Tensor
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorStorageMetadata

from tasks.convert.errors import ConversionError
from tasks.convert.files import OpenFiles, read_into
from tasks.convert.pickles import Described, read_description, read_metadata

METADATA = ".metadata"
_NO_WEIGHTS = ("optimizer.", "chained_", "rng")  # how the names of a checkpoint's other tensors begin
# What zipfile and pickle raise on bytes that are none of theirs: NotImplementedError for a zip version from the
# future, OSError for a place before the file's beginning.
_DAMAGED = (
    zipfile.BadZipFile,
    NotImplementedError,
    OSError,
    KeyError,
    ValueError,
    IndexError,
    TypeError,
    AttributeError,
    EOFError,
    pickle.PickleError,
)


@dataclass(frozen=True)
class Chunk:
    """One rectangle of a tensor, and where its archive is stored."""

    start: tuple[int, ...]
    shape: tuple[int, ...]
    file: str
    offset: int  # bytes
    length: int  # bytes


@dataclass(frozen=True)
class Stored:
    """A tensor of the checkpoint."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    chunks: tuple[Chunk, ...] = field(repr=False)


class Checkpoint:
    """A checkpoint's tensors by name. Raises ConversionError when it is damaged, or none."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tensors = _tensors(folder)
        self._files = OpenFiles(folder)
        self._data: dict[Chunk, int] = {}
        self._parts: dict[tuple[str, int], dict[tuple[int, ...], list[Chunk]]] = {}
        self._lock = threading.Lock()

    def weights(self) -> set[str]:
        """The names that are not the optimizer's or the random states'."""
        return {name for name in self.tensors if not name.startswith(_NO_WEIGHTS)}

    def files(self) -> set[str]:
        """The names of all files that its tensors are in."""
        return {chunk.file for stored in self.tensors.values() for chunk in stored.chunks}

    def close(self) -> None:
        self._files.close()

    def rows(self, name: str, index: tuple[int, ...], start: int, stop: int) -> Tensor:
        """Rows `start` to `stop` of a tensor, or of one with leading axes of its part at `index`."""
        stored = self.tensors[name]
        axes = len(index)
        wanted = (stop - start, *stored.shape[axes + 1 :])
        found: Tensor | None = None
        filled = 0
        for chunk in self._chunks_of(name, index):
            first, height = chunk.start[axes], chunk.shape[axes]
            low, high = max(start, first), min(stop, first + height)
            if low >= high:
                continue
            here = self._rows_of(chunk, stored.dtype, index, low - first, high - first)
            if here.shape == wanted:
                found = here
            else:
                found = torch.empty(wanted, dtype=stored.dtype) if found is None else found
                columns = tuple(
                    slice(at, at + size) for at, size in zip(chunk.start[axes + 1 :], here.shape[1:], strict=True)
                )
                found[(slice(low - start, high - start), *columns)] = here
            filled += here.numel()
        if found is None or filled != prod(wanted):
            raise ConversionError(
                f"{self.folder}: of rows {start} to {stop} of {name}{list(index)} the chunks in {METADATA} have "
                f"{filled} elements, not {prod(wanted)}"
            )
        return found

    def _chunks_of(self, name: str, index: tuple[int, ...]) -> list[Chunk]:
        """Those that have anything of the part at `index`. A stack of experts has thousands, so they are looked
        through once, and not for each block of rows."""
        key = name, len(index)
        with self._lock:
            if key not in self._parts:
                self._parts[key] = _by_part(self.tensors[name], len(index))
            return self._parts[key].get(index, [])

    def _rows_of(self, chunk: Chunk, dtype: torch.dtype, index: tuple[int, ...], start: int, stop: int) -> Tensor:
        shape = chunk.shape[len(index) :]
        row = prod(shape[1:]) * dtype.itemsize
        skipped = 0  # parts before the one at `index`
        for at, first, size in zip(index, chunk.start, chunk.shape, strict=False):
            skipped = skipped * size + at - first
        rows = torch.empty((stop - start, *shape[1:]), dtype=dtype)
        at = self._data_start(chunk, dtype) + (skipped * shape[0] + start) * row
        read_into(self._files.descriptor(chunk.file), rows, at, self.folder / chunk.file)
        return rows

    def _data_start(self, chunk: Chunk, dtype: torch.dtype) -> int:
        """Where a chunk's numbers begin in its file, once its archive has been checked."""
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


def data_start(descriptor: int, offset: int, length: int, where: str) -> tuple[Described, int]:
    """What a saved tensor is, and where its numbers begin in the file. Raises ConversionError unless they lie
    there row by row."""
    try:
        archive = zipfile.ZipFile(_Slice(descriptor, offset, length))
        top = archive.namelist()[0].split("/")[0]
        saved = read_description(archive.read(f"{top}/data.pkl"), where)
        record = archive.getinfo(f"{top}/data/{saved.record}")
        start = _record_start(descriptor, offset + record.header_offset)
    except _DAMAGED as error:
        raise ConversionError(f"{where}: cannot be read ({error}); the file is damaged or cut off") from error
    in_rows = saved.stride == torch.empty(saved.shape, device="meta").stride()
    whole = record.file_size >= (saved.offset + prod(saved.shape)) * saved.dtype.itemsize
    if not (in_rows and whole and record.compress_type == zipfile.ZIP_STORED):
        raise ConversionError(
            f"{where}: a tensor {list(saved.shape)} in {record.file_size} bytes with strides {list(saved.stride)}; "
            f"only whole, contiguous, uncompressed tensors can be read"
        )
    return saved, start + saved.offset * saved.dtype.itemsize


def _by_part(stored: Stored, axes: int) -> dict[tuple[int, ...], list[Chunk]]:
    """For each place along the first axes, the chunks that have anything there."""
    found: dict[tuple[int, ...], list[Chunk]] = {}
    for chunk in stored.chunks:
        spans = zip(chunk.start[:axes], chunk.shape[:axes], stored.shape[:axes], strict=True)
        for index in product(*(range(at, min(at + size, end)) for at, size, end in spans)):
            found.setdefault(index, []).append(chunk)
    return found


def _tensors(folder: Path) -> dict[str, Stored]:
    path = folder / METADATA
    if not path.is_file():
        raise ConversionError(f"{folder}: has no {METADATA}, so it is no torch_dist checkpoint of Megatron's")
    try:
        metadata = read_metadata(path)
        places = metadata.storage_data
        found = {
            name: Stored(
                tuple(about.size),
                about.properties.dtype,
                tuple(_chunk(chunk, places[MetadataIndex(name, chunk.offsets)]) for chunk in about.chunks),
            )
            for name, about in metadata.state_dict_metadata.items()
            if isinstance(about, TensorStorageMetadata)
        }
    except ConversionError:
        raise
    except Exception as error:  # damaged bytes can spell almost any error
        words = f"{type(error).__name__}: {error}"
        raise ConversionError(f"{path}: cannot be read ({words}); the file is damaged or cut off") from error
    sizes: dict[str, int] = {}
    for name, stored in found.items():
        for chunk in stored.chunks:
            end = chunk.offset + chunk.length
            if Path(chunk.file).name != chunk.file:
                raise ConversionError(f"{path}: {name} is said to be in {chunk.file}, outside of the checkpoint")
            if chunk.file not in sizes:
                sizes[chunk.file] = _size(folder / chunk.file)
            if end > sizes[chunk.file]:
                raise ConversionError(
                    f"{folder / chunk.file}: has {sizes[chunk.file]} bytes, and {name} should end at {end}: the file "
                    f"is cut off"
                )
        if not name.startswith(_NO_WEIGHTS) and not _whole(stored):
            raise ConversionError(f"{path}: the chunks of {name} {list(stored.shape)} overlap, or leave some of it out")
    return found


def _chunk(chunk: ChunkStorageMetadata, place: _StorageInfo) -> Chunk:
    return Chunk(
        tuple(chunk.offsets), tuple(chunk.sizes), str(place.relative_path), int(place.offset), int(place.length)
    )


def _whole(stored: Stored) -> bool:
    """Whether the chunks are as many elements as the tensor, within it, and none twice."""
    inside = all(
        start >= 0 and size >= 1 and start + size <= whole
        for chunk in stored.chunks
        for start, size, whole in zip(chunk.start, chunk.shape, stored.shape, strict=True)
    )
    starts = {chunk.start for chunk in stored.chunks}
    elements = sum(prod(chunk.shape) for chunk in stored.chunks)
    return inside and len(starts) == len(stored.chunks) and elements == prod(stored.shape)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        raise ConversionError(f"{path}: is missing, and {METADATA} names it") from None


def _record_start(descriptor: int, header: int) -> int:
    """Where a zip record's data begin, from its local header (APPNOTE.TXT 4.3.7)."""
    fixed = os.pread(descriptor, 30, header)
    if fixed[:4] != b"PK\x03\x04":
        raise zipfile.BadZipFile("no record where the archive's directory says there is one")
    return header + 30 + int.from_bytes(fixed[26:28], "little") + int.from_bytes(fixed[28:30], "little")


class _Slice(io.RawIOBase):
    """Part of a file as a file, for zipfile."""

    def __init__(self, descriptor: int, start: int, length: int) -> None:
        self._descriptor, self._start, self._length, self._at = descriptor, start, length, 0

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._length}[whence] + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        count = max(0, min(len(buffer), self._length - self._at))
        content = os.pread(self._descriptor, count, self._start + self._at)
        buffer[: len(content)] = content
        self._at += len(content)
        return len(content)
