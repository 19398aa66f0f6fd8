"""Move weights between the two formats, a block of rows at a time, on a few threads.

Neither a weight nor a file is ever whole in memory: a block is read, cast, digested and written
while it is in the processor's cache, so that the pace is that of copying a file.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from itertools import islice
from math import prod

import torch
from blake3 import blake3
from torch import Tensor

from tasks.convert.errors import ConversionError
from tasks.convert.files import raw
from tasks.convert.mapping import Weight

BLOCK = 1 << 20  # bytes
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
THREADS = min(4, os.cpu_count() or 1)
AHEAD = 4 * THREADS  # weights in hand


@dataclass(frozen=True)
class Entry:
    """One weight in the account: what it is in Megatron's checkpoint, and what its parts are in Hugging Face's
    files. A digest is BLAKE3 of the tensor's bytes, row by row."""

    megatron: str
    shape: list[int]
    dtype: str
    digest: str
    parts: "list[Part]"


@dataclass(frozen=True)
class Part:
    name: str
    shape: list[int]
    dtype: str
    digest: str


def cast(name: str, stored: torch.dtype, wanted: str | None) -> torch.dtype:
    """The type that a weight is written in; `wanted`: one of DTYPES, or None for the type it has."""
    # the bias that decides between close experts stays as exact as it is: DeepSeek-V3 keeps it in fp32
    return stored if wanted is None or "expert_bias" in name else DTYPES[wanted]


def size(weights: Iterable[Weight], dtypes: dict[str, torch.dtype]) -> int:
    """Bytes of all weights; `dtypes`: each one's, by its name."""
    return sum(weight.elements * dtypes[weight.name].itemsize for weight in weights)


def _rounded(rows: Tensor, dtype: torch.dtype, weight: Weight) -> Tensor:
    """`rows` as `dtype`; infinities and NaNs stay. Raises ConversionError where a finite number would be infinite."""
    found = rows.to(dtype)
    if rows.dtype != dtype:
        lost = found.isinf() & rows.isfinite()
        if lost.any():
            raise ConversionError(
                f"{weight.name} has {float(rows[lost][0]):.6g}, and {str(dtype).removeprefix('torch.')} ends at "
                f"{torch.finfo(dtype).max:.6g}; choose a wider --dtype, or leave the type as it is"
            )
    return found


@dataclass(frozen=True)
class Piece:
    """Rows of a block that are rows of a part."""

    part: int
    row: int  # the first, in the part
    start: int  # in the block
    stop: int


def blocks(weight: Weight, itemsize: int, most: int = BLOCK) -> Iterator[tuple[int, int, list[Piece]]]:
    """A weight's rows, `start` to `stop`, in blocks of about `most` bytes, and each block's pieces."""
    height = _height(weight, itemsize, most)
    ends, end = [], 0
    for segment in weight.segments:
        ends.append(end := end + segment.stop - segment.start)
    first = 0  # of the segments that are not behind us
    for start in range(0, weight.shape[0], height):
        stop = min(start + height, weight.shape[0])
        pieces = []
        while ends[first] <= start:
            first += 1
        for segment, end in islice(zip(weight.segments, ends, strict=True), first, None):
            begin = end - (segment.stop - segment.start)
            if begin >= stop:
                break
            low, high = max(begin, start), min(end, stop)
            pieces.append(Piece(segment.part, segment.start + low - begin, low - start, high - start))
        yield start, stop, pieces


def _height(weight: Weight, itemsize: int, most: int = BLOCK) -> int:
    """Rows in a block."""
    return max(1, most // max(1, prod(weight.shape[1:]) * itemsize))


def _same_bytes(weight: Weight, ours: torch.dtype | None, theirs: torch.dtype) -> bool:
    """Whether a weight's bytes are those of its one part: then one digest serves both."""
    return len(weight.segments) == 1 and ours == theirs


def export_weight(
    weight: Weight,
    dtype: torch.dtype,
    read: Callable[[int, int], Tensor],
    write: Callable[[str, int, memoryview], None],
) -> Entry:
    """`read(start, stop)` gives Megatron's rows; `write(name, row, bytes)` takes a part's, as `dtype`."""
    whole, parts = blake3(), [blake3() for _ in weight.parts]
    stored: torch.dtype | None = None
    for start, stop, pieces in blocks(weight, dtype.itemsize):
        rows = read(start, stop)
        stored = rows.dtype
        if not _same_bytes(weight, stored, dtype):
            whole.update(raw(rows))
        rows = _rounded(rows, dtype, weight)
        for piece in pieces:
            content = raw(rows[piece.start : piece.stop])
            parts[piece.part].update(content)
            write(weight.parts[piece.part][0], piece.row, content)
    if _same_bytes(weight, stored, dtype):
        whole = parts[0]
    return entry(weight, str(stored), whole, str(dtype), parts)


def import_weight(
    weight: Weight,
    stored: torch.dtype,
    dtype: torch.dtype,
    read: Callable[[str, int, Tensor], None],
    write: Callable[[int, memoryview], None],
) -> Entry:
    """`read(name, row, rows)` fills `rows`, of type `stored`, from a part; `write(row, bytes)` takes Megatron's,
    as `dtype`."""
    whole, parts = blake3(), [blake3() for _ in weight.parts]
    same = _same_bytes(weight, dtype, stored)
    # one block's memory for all of them: fresh memory would be cleared by the kernel each time
    room = torch.empty((min(_height(weight, dtype.itemsize), weight.shape[0]), *weight.shape[1:]), dtype=stored)
    for start, stop, pieces in blocks(weight, dtype.itemsize):
        rows = room[: stop - start]
        for piece in pieces:
            here = rows[piece.start : piece.stop]
            read(weight.parts[piece.part][0], piece.row, here)
            parts[piece.part].update(raw(here))
        content = raw(_rounded(rows, dtype, weight))
        if not same:
            whole.update(content)
        write(start, content)
    return entry(weight, str(dtype), parts[0] if same else whole, str(stored), parts)


def entry(weight: Weight, ours: str, whole: blake3, theirs: str, parts: list[blake3]) -> Entry:
    found = [
        Part(name, list(shape), theirs.removeprefix("torch."), digest.hexdigest())
        for (name, shape), digest in zip(weight.parts, parts, strict=True)
    ]
    return Entry(weight.name, list(weight.shape), ours.removeprefix("torch."), whole.hexdigest(), found)


def each(work: Callable[[Weight], Entry], weights: list[Weight], done: Callable[[Weight], None]) -> list[Entry]:
    """`work` on every weight, on THREADS threads; results in the weights' order. The first error ends it."""
    found: dict[str, Entry] = {}
    pending: dict[Future[Entry], Weight] = {}

    def take() -> None:
        for future in wait(pending, return_when=FIRST_COMPLETED).done:
            weight = pending.pop(future)
            found[weight.name] = future.result()
            done(weight)

    with ThreadPoolExecutor(THREADS, "transfer") as pool:
        try:
            for weight in weights:
                pending[pool.submit(work, weight)] = weight
                if len(pending) > AHEAD:
                    take()
            while pending:
                take()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return [found[weight.name] for weight in weights]
