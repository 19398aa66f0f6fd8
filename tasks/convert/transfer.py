"""Move weights between the two formats on a few threads, one block of rows at a time.

Neither a weight nor a file is ever entirely in memory: a block is read, cast, digested and written while it is in the
CPU's cache, so the conversion is about as fast as copying the files.
"""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from itertools import islice
from math import prod

import torch
from blake3 import blake3
from torch import Tensor

from baton.infra.process.limits import cores
from baton.tasks.convert.files import raw
from baton.tasks.convert.mapping import Weight
from baton.tasks.models.errors import ConversionError
from baton.tasks.models.tensors import finite

BLOCK = 1 << 20  # bytes
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
THREADS = min(4, cores())
AHEAD = 4 * THREADS  # number of queued weights


@dataclass(frozen=True)
class Entry:
    """One weight in the conversion record, as stored in Megatron's checkpoint and, in parts, in Hugging Face's files.
    Digests are BLAKE3 of the tensor's bytes."""

    megatron: str
    shape: list[int]
    dtype: str
    digest: str
    parts: "list[TensorPart]"


@dataclass(frozen=True)
class TensorPart:
    name: str
    shape: list[int]
    dtype: str
    digest: str


def cast(name: str, source_dtype: torch.dtype, name_of_type: str | None) -> torch.dtype:
    """Return the type in which a weight is written. `name_of_type`: one of DTYPES, or None to leave it unchanged."""
    # The bias that decides between experts with close scores is never cast, since DeepSeek-V3 keeps it in fp32
    return source_dtype if name_of_type is None or "expert_bias" in name else DTYPES[name_of_type]


def size(weights: Iterable[Weight], dtypes: dict[str, torch.dtype]) -> int:
    """Return the size of all weights in bytes. `dtypes`: each weight's type, by its name."""
    return sum(weight.elements * dtypes[weight.name].itemsize for weight in weights)


def _rounded(rows: Tensor, dtype: torch.dtype, weight: Weight) -> Tensor:
    """Convert `rows` to `dtype`, keeping infinities and NaNs. Raises ConversionError if a finite number would
    overflow."""
    result = rows.to(dtype)
    if rows.dtype != dtype:
        overflow = result.isinf() & rows.isfinite()
        if overflow.any():
            raise ConversionError(
                f"{weight.name} has {float(rows[overflow][0]):.6g}, and {str(dtype).removeprefix('torch.')} goes up to "
                f"{torch.finfo(dtype).max:.6g}; choose a wider --dtype, or leave the type unchanged"
            )
    return result


@dataclass(frozen=True)
class Piece:
    """Consecutive rows of a block that come from one part."""

    part: int
    row: int  # first row in the part
    start: int  # first row in the block
    stop: int


def blocks(weight: Weight, itemsize: int, most: int = BLOCK) -> Iterator[tuple[int, int, list[Piece]]]:
    """Yield a weight's rows [start, stop) in blocks of about `most` bytes, with each block's pieces."""
    height = _height(weight, itemsize, most)
    ends, end = [], 0
    for segment in weight.segments:
        ends.append(end := end + segment.stop - segment.start)
    first = 0  # the first segment that is not finished
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
    """Return the number of rows in a block."""
    return max(1, most // max(1, prod(weight.shape[1:]) * itemsize))


def _same_bytes(weight: Weight, dtype: torch.dtype | None, part_dtype: torch.dtype) -> bool:
    """Return whether a weight has the same bytes as its only part, so that one digest serves both."""
    return len(weight.segments) == 1 and dtype == part_dtype


def export_weight(
    weight: Weight,
    dtype: torch.dtype,
    read: Callable[[int, int], Tensor],
    write: Callable[[str, int, memoryview], None],
) -> Entry:
    """Export one weight. `read(start, stop)` returns Megatron's rows; `write(name, row, bytes)` writes rows of a part,
    as `dtype`."""
    full_hash, parts = blake3(), [blake3() for _ in weight.parts]
    source_dtype: torch.dtype | None = None
    for start, stop, pieces in blocks(weight, dtype.itemsize):
        rows = read(start, stop)
        source_dtype = rows.dtype
        if not _same_bytes(weight, source_dtype, dtype):
            full_hash.update(raw(rows))
        rows = _rounded(rows, dtype, weight)
        for piece in pieces:
            content = raw(rows[piece.start : piece.stop])
            parts[piece.part].update(content)
            write(weight.parts[piece.part][0], piece.row, content)
    if _same_bytes(weight, source_dtype, dtype):
        full_hash = parts[0]
    return entry(weight, str(source_dtype), full_hash, str(dtype), parts)


def import_weight(
    weight: Weight,
    source_dtype: torch.dtype,
    dtype: torch.dtype,
    read: Callable[[str, int, Tensor], None],
    write: Callable[[int, memoryview], None],
    not_finite: Callable[[str], None],
) -> Entry:
    """Import one weight. `read(name, row, rows)` fills `rows`, of type `source_dtype`, from a part; `write(row, bytes)`
    writes Megatron's rows, as `dtype`. `not_finite(name)` is called for a part that has NaN or infinity."""
    full_hash, parts = blake3(), [blake3() for _ in weight.parts]
    same = _same_bytes(weight, dtype, source_dtype)
    # Reuse one block's memory, since the kernel would clear fresh memory each time
    room = torch.empty((min(_height(weight, dtype.itemsize), weight.shape[0]), *weight.shape[1:]), dtype=source_dtype)
    for start, stop, pieces in blocks(weight, dtype.itemsize):
        rows = room[: stop - start]
        for piece in pieces:
            piece_rows = rows[piece.start : piece.stop]
            read(weight.parts[piece.part][0], piece.row, piece_rows)
            parts[piece.part].update(raw(piece_rows))
            if not finite(piece_rows):
                not_finite(weight.parts[piece.part][0])
        content = raw(_rounded(rows, dtype, weight))
        if not same:
            full_hash.update(content)
        write(start, content)
    return entry(weight, str(dtype), parts[0] if same else full_hash, str(source_dtype), parts)


def entry(weight: Weight, dtype: str, full_hash: blake3, part_dtype: str, parts: list[blake3]) -> Entry:
    entry_parts = [
        TensorPart(name, list(shape), part_dtype.removeprefix("torch."), digest.hexdigest())
        for (name, shape), digest in zip(weight.parts, parts, strict=True)
    ]
    return Entry(weight.name, list(weight.shape), dtype.removeprefix("torch."), full_hash.hexdigest(), entry_parts)


def map_weights(
    work: Callable[[Weight], Entry],
    weights: list[Weight],
    size_of: Callable[[Weight], int],
    progress: Callable[[int, int], None],
) -> list[Entry]:
    """Run `work` on every weight on THREADS threads, and return the results in the weights' order. Stops at the first
    error. `progress(done, total)` gets sums of sizes."""
    entries: dict[str, Entry] = {}
    pending: dict[Future[Entry], Weight] = {}
    done, total = 0, sum(map(size_of, weights))
    progress(done, total)

    def collect() -> None:
        nonlocal done
        for future in wait(pending, return_when=FIRST_COMPLETED).done:
            weight = pending.pop(future)
            entries[weight.name] = future.result()
            done += size_of(weight)
            progress(done, total)

    with ThreadPoolExecutor(THREADS, "transfer") as pool:
        try:
            for weight in weights:
                pending[pool.submit(work, weight)] = weight
                if len(pending) > AHEAD:
                    collect()
            while pending:
                collect()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return [entries[weight.name] for weight in weights]
