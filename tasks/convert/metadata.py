"""Read a checkpoint's `.metadata` in a child process (tasks/convert/read_metadata.py) with resource limits.

The child parses the pickle without executing it and prints JSON. It runs once per checkpoint and starts in 50 ms
without torch. Its limits grow with the file: a file that torch writes needs about 25 bytes of memory and 0.5 µs per
byte.
"""

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import torch

from baton import IMPORTED_FROM
from baton.tasks.models.errors import ConversionError

MOST_BYTES = 256 << 20  # maximum size of a .metadata, enough for more than a million chunks


@dataclass(frozen=True)
class Chunk:
    """One rectangular part of a tensor, and where its archive is stored."""

    start: tuple[int, ...]
    shape: tuple[int, ...]
    file: str
    offset: int  # bytes
    length: int  # bytes


@dataclass(frozen=True)
class CheckpointTensor:
    """A tensor of the checkpoint."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    chunks: tuple[Chunk, ...] = field(repr=False)


def read_metadata(path: Path) -> dict[str, CheckpointTensor]:
    """Return the tensors that a `.metadata` describes. Raises ConversionError, and OSError if it cannot be opened."""
    with path.open("rb") as stream:
        size = os.fstat(stream.fileno()).st_size
        if size > MOST_BYTES:
            raise ConversionError(f"{path}: has {size} bytes; a checkpoint's metadata may have up to {MOST_BYTES}")
        seconds, memory = 30 + 10 * (size >> 20), (256 << 20) + 48 * size
        command = [sys.executable, "-S", "-E", "-m", "baton.tasks.convert.read_metadata", str(seconds), str(memory)]
        timeout_s = 60 + 5 * seconds
        try:
            child = subprocess.run(
                command, cwd=IMPORTED_FROM, stdin=stream, capture_output=True, text=True, timeout=timeout_s, check=False
            )
        except subprocess.TimeoutExpired:
            raise ConversionError(f"{path}: cannot be read in {timeout_s} s; the file is damaged") from None
    if child.returncode == 1 and len(lines := child.stderr.splitlines()) == 1:
        raise ConversionError(f"{path} {lines[0]}")
    if child.returncode:
        raise ConversionError(
            f"{path}: cannot be read within {seconds} s of CPU time and {memory >> 20} MiB (exit code "
            f"{child.returncode}: {' '.join(child.stderr.split()[-20:])}); the file is damaged"
        )
    return dict(_tensor(path, *json.loads(line)) for line in child.stdout.splitlines())


def _tensor(
    path: Path, name: str, dtype: str, shape: list[int], chunks: list[list[object]]
) -> tuple[str, CheckpointTensor]:
    kind = getattr(torch, dtype, None)
    if not isinstance(kind, torch.dtype):
        raise ConversionError(f"{path}: {name} has dtype {dtype}, which this version of torch does not have")
    parts = tuple(Chunk(tuple(start), tuple(size), *place) for start, size, *place in chunks)  # type: ignore
    return name, CheckpointTensor(tuple(shape), kind, parts)
