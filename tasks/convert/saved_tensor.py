"""Locate the data of a tensor that torch.save wrote into part of a file, as a zip archive with uncompressed records.

    <top>/data.pkl      the tensor's construction from its storage, a pickle that is parsed but never executed
    <top>/data/<key>    the storage's bytes
    <top>/byteorder     "little"

The archive's central directory, its records' local headers and data.pkl must be consistent. The data is read later, in
parts, so its CRC is not checked; manifest.json has the files' digests.
"""

import io
import os
import re
import struct
import zipfile
from dataclasses import dataclass
from math import prod

import torch

from baton.tasks.convert.pickles import Call, Name, Pairs, Persistent, PickleError, Value, kind, load, shown
from baton.tasks.models.errors import ConversionError

MOST_BYTES = 1 << 16  # maximum of a record read at once, and of an archive's directory; torch writes a few hundred
_LOCAL = struct.Struct("<4s5H3I2H")  # a record's local header (APPNOTE.TXT 4.3.7)
_DESCRIPTORS = {struct.calcsize(layout): struct.Struct(layout) for layout in ("<4s3I", "<4sI2Q")}  # 4.3.9
_STREAMED, _UTF8 = 0x8, 0x800  # flags (4.4.4)
# Exceptions of zipfile for damaged archives; NotImplementedError is for unsupported zip versions and methods
_DAMAGED = (zipfile.BadZipFile, NotImplementedError, RuntimeError, OSError, LookupError, ValueError, OverflowError,
            EOFError, struct.error)  # fmt: skip

_STORAGES = {
    "FloatStorage": torch.float32, "HalfStorage": torch.float16, "BFloat16Storage": torch.bfloat16,
    "DoubleStorage": torch.float64, "ByteStorage": torch.uint8, "CharStorage": torch.int8,
    "ShortStorage": torch.int16, "IntStorage": torch.int32, "LongStorage": torch.int64, "BoolStorage": torch.bool,
}  # fmt: skip
_NAMES = {
    "torch._utils._rebuild_tensor_v2",
    "torch._utils._rebuild_parameter",
    "collections.OrderedDict",
    *(f"torch.{name}" for name in _STORAGES),
}


@dataclass(frozen=True)
class Described:
    """The description of a tensor by torch.save."""

    dtype: torch.dtype
    record: str  # name of data/<record> in the zip archive
    elements: int  # number of elements in the record
    offset: int  # first element in the record
    shape: tuple[int, ...]
    stride: tuple[int, ...]


def data_start(descriptor: int, offset: int, length: int, where: str) -> tuple[Described, int]:
    """Return a saved tensor's description, and the offset of its data in the file. Raises ConversionError unless the
    data is contiguous."""
    try:
        part = _FileRange(descriptor, offset, length)
        archive = zipfile.ZipFile(part)
        records = _records(archive)
        top = archive.namelist()[0].split("/")[0]
        saved = _described(_content(part, archive, records, f"{top}/data.pkl"))
        record = f"{top}/data/{saved.record}"
        start = _data(part, archive, records, record)
        order = f"{top}/byteorder"
        if order in records and _content(part, archive, records, order) != b"little":
            raise zipfile.BadZipFile("its data is not little-endian")
    except PickleError as error:
        raise ConversionError(f"{where}: its data.pkl {error}") from error
    except _DAMAGED as error:
        reason = shown(str(error) or type(error).__name__)
        raise ConversionError(f"{where}: cannot be read ({reason}); the file is damaged or truncated") from error
    size = records[record].file_size
    is_complete = size == saved.elements * saved.dtype.itemsize and saved.offset + prod(saved.shape) <= saved.elements
    if not (is_complete and saved.stride == _contiguous_strides(saved.shape)):
        raise ConversionError(
            f"{where}: a tensor {list(saved.shape)} of {saved.dtype} from element {saved.offset} on, with strides "
            f"{list(saved.stride)}, of {saved.elements} elements in {size} bytes; only complete, contiguous, "
            f"uncompressed tensors can be read"
        )
    return saved, offset + start + saved.offset * saved.dtype.itemsize


def _records(archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    """Return the records by name. Raises BadZipFile unless all are uncompressed and have unique names."""
    records: dict[str, zipfile.ZipInfo] = {}
    for record in archive.infolist():
        name = shown(record.filename)
        if record.filename in records or record.orig_filename != record.filename:
            raise zipfile.BadZipFile(f"it has two records {name}, or one with a truncated name")
        if record.flag_bits & ~(_STREAMED | _UTF8):
            raise zipfile.BadZipFile(f"the flags of {name} are {record.flag_bits:#x}: encrypted, or unsupported")
        if record.compress_type != zipfile.ZIP_STORED or record.compress_size != record.file_size:
            raise zipfile.BadZipFile(f"{name} is compressed; only uncompressed tensors can be read")
        records[record.filename] = record
    return records


def _data(part: "_FileRange", archive: zipfile.ZipFile, records: dict[str, zipfile.ZipInfo], name: str) -> int:
    """Return the offset of a record's data in the archive. The record's local header, its size and the start of the
    next record must agree. Raises BadZipFile, KeyError."""
    record = records[name]
    header = part.at(record.header_offset, _LOCAL.size)
    signature, _, flags, method, _, _, crc, compressed, size, name_length, extra_length = _LOCAL.unpack(header)
    start: int = record.header_offset + _LOCAL.size + name_length + extra_length
    written = part.at(record.header_offset + _LOCAL.size, name_length)
    if (signature, flags, method, written) != (b"PK\x03\x04", record.flag_bits, 0, name.encode()):
        raise zipfile.BadZipFile(f"no record {shown(name)} where the archive's directory lists it")
    limits = sorted({archive.start_dir, *(other.header_offset for other in records.values())})
    end = next((limit for limit in limits if limit > record.header_offset), -1)
    after = end - start - record.file_size
    if flags & _STREAMED and after in _DESCRIPTORS:
        signature, crc, compressed, size = _DESCRIPTORS[after].unpack(part.at(start + record.file_size, after))
        right = signature == b"PK\x07\x08"
    else:
        right = after == 0 and not flags & _STREAMED
    if not right or (crc, compressed, size) != (record.CRC, record.file_size, record.file_size):
        raise zipfile.BadZipFile(f"{shown(name)} does not have the expected length, or overlaps another record")
    return start


def _content(part: "_FileRange", archive: zipfile.ZipFile, records: dict[str, zipfile.ZipInfo], name: str) -> bytes:
    """Return a small record's content. zipfile checks its CRC."""
    _data(part, archive, records, name)
    return archive.read(name)


def _described(content: bytes) -> Described:
    """Parse a saved tensor's `data.pkl`. Raises PickleError."""
    parsed = load(content, _NAMES.__contains__)
    match parsed:
        case Call(name="torch._utils._rebuild_parameter", arguments=(Call() as tensor, bool(), _), state=None):
            parsed = tensor
    match parsed:
        case Call(
            name="torch._utils._rebuild_tensor_v2",
            arguments=(
                Persistent(("storage", Name(name=storage), str(record), str(), int(elements))),
                int(offset),
                tuple(shape),
                tuple(stride),
                bool(),
                Pairs(items=[]),
                *more,
            ),
            state=None,
        ) if storage.removeprefix("torch.") in _STORAGES:
            # Further arguments mark a lazily conjugated or negated tensor
            if any(item is not None and not (isinstance(item, Pairs) and not item.items) for item in more):
                raise PickleError("describes a tensor that is conjugated or negated when it is read")
            if not re.fullmatch(r"\d+", record):
                raise PickleError(f"names the record {shown(record)}, which is not a number")
            dtype = _STORAGES[storage.removeprefix("torch.")]
            numbers = (_count(elements), _count(offset), _counts(shape), _counts(stride))
            return Described(dtype, record, *numbers)
    raise PickleError(f"contains a {kind(parsed)}, not a tensor as torch.save describes it")


def _count(value: Value) -> int:
    if type(value) is not int or not 0 <= value < 2**63:
        raise PickleError(f"has a {kind(value)} among its sizes that is not a size")
    return value


def _counts(values: tuple[Value, ...]) -> tuple[int, ...]:
    return tuple(map(_count, values))


def _contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return a contiguous tensor's strides, in elements."""
    return tuple(prod(max(size, 1) for size in shape[axis + 1 :]) for axis in range(len(shape)))


class _FileRange(io.RawIOBase):
    """Part of a file as a file object for zipfile, which allows only small reads."""

    def __init__(self, descriptor: int, start: int, length: int) -> None:
        self._descriptor, self._start, self._length, self._at = descriptor, start, length, 0

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        place = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._length}[whence] + offset
        if place < 0:
            raise zipfile.BadZipFile("it refers to an offset before its start")
        self._at = place
        return place

    def tell(self) -> int:
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        left = max(0, self._length - self._at)
        size = left if size is None or size < 0 else min(size, left)
        if size > 2 * MOST_BYTES:  # zipfile searches for the directory in the last 64 KiB and a little more
            raise zipfile.BadZipFile(f"its directory or its data.pkl has {size} bytes")
        content = os.pread(self._descriptor, size, self._start + self._at)
        self._at += len(content)
        return content

    def at(self, offset: int, size: int) -> bytes:
        """Return the bytes at an offset. Raises BadZipFile if the part is too short."""
        self.seek(offset)
        content = self.read(size)
        if len(content) != size:
            raise zipfile.BadZipFile("it is truncated")
        return content
