"""Read and write tensors' bytes at offsets in files, from any thread."""

import os
import threading
from pathlib import Path

import torch
from blake3 import blake3
from torch import Tensor

from baton.tasks.models.errors import ConversionError


class OpenFiles:
    """A cache of file descriptors of a folder's files, opened for reading."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._open: dict[str, int] = {}
        self._lock = threading.Lock()

    def descriptor(self, name: str) -> int:
        with self._lock:
            if name not in self._open:
                self._open[name] = os.open(self._folder / name, os.O_RDONLY)
            return self._open[name]


def raw(tensor: Tensor) -> memoryview:
    """Return a view of a contiguous tensor's bytes."""
    return tensor.view(-1).view(torch.uint8).numpy().data


def read_into(descriptor: int, tensor: Tensor, offset: int, path: Path) -> None:
    """Fill a contiguous tensor from a file. Raises ConversionError if the file is too short."""
    rest = raw(tensor)
    while rest:
        count = os.preadv(descriptor, [rest], offset)
        if not count:
            raise ConversionError(f"{path}: ends at byte {offset}, {len(rest)} bytes too early; it is truncated")
        rest, offset = rest[count:], offset + count


def digest(descriptor: int, offset: int, size: int) -> str:
    """Return the BLAKE3 of a range of a file, or of as much of the range as exists."""
    hasher = blake3()
    while size and (content := os.pread(descriptor, min(size, 1 << 20), offset)):
        hasher.update(content)
        offset, size = offset + len(content), size - len(content)
    return hasher.hexdigest()


def allocate(path: Path, size: int) -> int:
    """Create a file for writing with `size` allocated bytes. Raises OSError."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
    try:
        os.posix_fallocate(descriptor, 0, size)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def write(descriptor: int, content: memoryview, offset: int) -> None:
    """Write all of `content`. Raises OSError, for example if the disk is full."""
    while content:
        count = os.pwrite(descriptor, content, offset)
        content, offset = content[count:], offset + count
