"""Tensors' bytes in files: read and written in place, by any thread."""

import os
import threading
from pathlib import Path

import torch
from blake3 import blake3
from torch import Tensor

from tasks.convert.errors import ConversionError


class OpenFiles:
    """A folder's files, each opened once for reading."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._open: dict[str, int] = {}
        self._lock = threading.Lock()

    def descriptor(self, name: str) -> int:
        with self._lock:
            if name not in self._open:
                self._open[name] = os.open(self._folder / name, os.O_RDONLY)
            return self._open[name]

    def close(self) -> None:
        for descriptor in self._open.values():
            os.close(descriptor)
        self._open.clear()


def raw(tensor: Tensor) -> memoryview:
    """A contiguous tensor's bytes, shared with it."""
    return tensor.view(-1).view(torch.uint8).numpy().data


def read_into(descriptor: int, tensor: Tensor, offset: int, path: Path) -> None:
    """Fill a contiguous tensor from a file. Raises ConversionError when it ends too early."""
    rest = raw(tensor)
    while rest:
        count = os.preadv(descriptor, [rest], offset)
        if not count:
            raise ConversionError(f"{path}: ends at byte {offset}, {len(rest)} bytes too early; it is cut off")
        rest, offset = rest[count:], offset + count


def digest(descriptor: int, offset: int, size: int) -> str:
    """BLAKE3 of a part of a file, or of what there is of it."""
    found = blake3()
    while size and (content := os.pread(descriptor, min(size, 1 << 20), offset)):
        found.update(content)
        offset, size = offset + len(content), size - len(content)
    return found.hexdigest()


def allocate(path: Path, size: int) -> int:
    """Open a file of `size` bytes for writing, with room for all of them; what is in it stays. Raises OSError."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        os.posix_fallocate(descriptor, 0, size)
        os.ftruncate(descriptor, size)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def write(descriptor: int, content: memoryview, offset: int) -> None:
    """Write all of it. Raises OSError, as when the disk is full."""
    while content:
        count = os.pwrite(descriptor, content, offset)
        content, offset = content[count:], offset + count
