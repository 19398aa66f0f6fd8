"""Cut a source into partitions: the units in which a corpus is read, cached and written.

Partitions are cut only by the names and sizes of the source's files, so that they do not depend on the machine, and an
added or removed file changes only its partition: a hash of a file's name decides whether a partition ends after it, on
average once in `target` bytes (content-defined chunking, as in LBFS, SOSP 2001, with files in the place of bytes). A
file of `target` bytes or more is a separate partition; a plain `.jsonl` is cut into ranges of bytes, and Parquet into
ranges of row groups. Compressed JSONL, WARC and WET are cut later if they are large (split.py). Datasets and functions
are not cut, and a source that is smaller than `target` is one partition.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from blake3 import blake3

from baton.infra.storage.address import File
from baton.tasks.data.source_spec import AnySource, FunctionSource, HuggingFaceSource, JsonlSource, ParquetSource

LARGEST = 4  # size limit of a partition of several files, as a multiple of the target


@dataclass(frozen=True)
class Piece:
    """A file, or a range of it: of bytes in JSONL (the lines that begin there) and WARC, of row groups in Parquet."""

    file: File
    start: int = 0
    end: int | None = None  # None for the file's end
    size: int = 0  # in bytes, about
    copy: File | None = None  # a file with only its lines; `start` and `end` are then numbers of lines (split.py)


@dataclass(frozen=True)
class Partition:
    """Successive pieces of one source; none if the source has no files and is read at once."""

    source: str | None  # name under `sources`
    pieces: tuple[Piece, ...] = ()

    @property
    def size(self) -> int:
        """The approximate size in bytes; 0 if unknown."""
        return sum(piece.size for piece in self.pieces)


def uncut(files: list[File]) -> tuple[Piece, ...]:
    return tuple(Piece(file, size=file.size) for file in files)


def partitions(name: str | None, source: AnySource, target: int) -> list[Partition]:
    """The partitions of a source, of about `target` bytes each, in its order. Raises StorageError."""
    if isinstance(source, FunctionSource | HuggingFaceSource):
        return [Partition(name)]
    files = source.files()
    if sum(file.size for file in files) < target:
        return [Partition(name, uncut(files))]
    return [Partition(name, pieces) for pieces in _cut(source, files, target)]


def _cut(source: AnySource, files: list[File], target: int) -> Iterator[tuple[Piece, ...]]:
    together: list[File] = []
    size = 0
    for file in files:
        if file.size >= target:
            if together:
                yield uncut(together)
                together, size = [], 0
            yield from ((piece,) for piece in _ranges(source, file, target))
            continue
        together.append(file)
        size += file.size
        if _fraction(file.name) < file.size / target or size >= LARGEST * target:
            yield uncut(together)
            together, size = [], 0
    if together:
        yield uncut(together)


def _fraction(name: str) -> float:
    """A hash of the name in [0, 1)."""
    return int.from_bytes(blake3(name.encode()).digest(8), "big") / 2**64


def _ranges(source: AnySource, file: File, target: int) -> Iterator[Piece]:
    """The pieces of a large file."""
    if isinstance(source, JsonlSource) and file.name.endswith(".jsonl"):
        for start in range(0, file.size, target):
            end = min(start + target, file.size)
            yield Piece(file, start, end, end - start)
    elif isinstance(source, ParquetSource):
        yield from _row_groups(file, target)
    else:
        yield Piece(file, size=file.size)


def _row_groups(file: File, target: int) -> Iterator[Piece]:
    import pyarrow as pa  # not for --help
    import pyarrow.parquet as pq

    try:
        with file.open() as opened:
            about = pq.read_metadata(opened)
    except pa.ArrowInvalid:
        yield Piece(file, size=file.size)  # reading it reports the fault, or skips it
        return
    rows = [about.row_group(index).num_rows for index in range(about.num_row_groups)]
    start = size = 0
    for index, number in enumerate(rows):
        size += file.size * number // max(1, about.num_rows)
        if size >= target or index == len(rows) - 1:
            yield Piece(file, start, index + 1, size)
            start, size = index + 1, 0
