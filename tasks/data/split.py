"""Cut large files that can only be cut by reading them from the beginning: compressed JSONL, and WARC and WET.

    00000.jsonl.zst …    for JSONL: each has the lines of about `target` bytes of text
    manifest.json        its fact `starts` has the start of each piece: the number of lines before it or, for WARC,
                         the offset in the file; pieces of WARC have about `target` bytes of the file

The pieces depend only on the file's content, `target` and `most`. A file that is damaged, or has a line of more than
`most` bytes, has no pieces: its scan, which reads it as one partition, reports the fault or skips it.
"""

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa

from baton.infra.storage.address import File
from baton.tasks.core.job import StageError
from baton.tasks.core.manifest import json_key, read_manifest
from baton.tasks.data.partition_cache import FolderCache, make_once
from baton.tasks.data.partitions import Partition, Piece
from baton.tasks.data.readers.jsonl import lines_of
from baton.tasks.data.rounds import Amount, Report
from baton.tasks.data.source_spec import AnySource, JsonlSource, WarcSource

SPLIT_VERSION = 1  # raise it when the same file would have other pieces
LARGE = 2  # size from which on a file is cut, as a multiple of the target
WRITE_BYTES = 1 << 20  # compressed at a time


@dataclass(frozen=True)
class SplitItem:
    """A file to cut, and the folder for its pieces."""

    folder: Path
    file: File
    target: int
    most: int | None  # bytes of a line, in JSONL
    cache: FolderCache | None  # for results of other pods


def split_item(
    source: AnySource, part: Partition, target: int, folder: Path, cache: FolderCache | None
) -> SplitItem | None:
    """The item for a partition that is a large file of these kinds; None for others."""
    if not isinstance(source, JsonlSource | WarcSource) or len(part.pieces) != 1:
        return None
    file = part.pieces[0].file
    if file.name.endswith(".jsonl") or file.size <= LARGE * target:
        return None
    most = source.max_bytes() if isinstance(source, JsonlSource) else None
    key = [SPLIT_VERSION, file.place, file.size, file.version, target, most]
    return SplitItem(folder / f"{json_key(key)}.split", file, target, most, cache)


def split(item: SplitItem, report: Report) -> None:
    """Cut a file, unless its pieces exist. Raises StorageError, OSError."""
    make_once(item.folder, "split", item.cache, partial(_pieces, item, report))


def _pieces(item: SplitItem, report: Report, folder: Path) -> dict[str, Any]:
    if item.most is None:
        from baton.tasks.data.readers.warc_starts import piece_starts  # native parsers, which other sources do not need

        return {"starts": piece_starts(item.file, item.target, report)}
    try:
        return {"starts": _split(item, item.most, folder, report)}
    except StageError:
        return {"starts": []}


def _split(item: SplitItem, most: int, folder: Path, report: Report) -> list[int]:
    """Write the pieces; returns the number of lines before each."""
    starts, last = list[int](), 0
    with item.file.open() as file:
        lines = lines_of(Piece(item.file), file, most)
        for first in lines:
            piece, text = folder / f"{len(starts):05}.jsonl.zst", bytearray()
            starts.append(last)
            with closing(pa.CompressedOutputStream(str(piece), "zstd")) as stream:
                for number, line in _until(item.target, first, lines):
                    text += b"\n" * (number - last - 1) + line.rstrip(b"\n") + b"\n"  # blank lines count
                    last = number
                    if len(text) > WRITE_BYTES:
                        stream.write(text)
                        text.clear()
                        report(file.tell() / item.file.size, Amount(number, 0))
                stream.write(text)
    return starts


def _until(size: int, first: tuple[int, bytes], lines: Iterator[tuple[int, bytes]]) -> Iterator[tuple[int, bytes]]:
    """The first line and those after it, up to about a size."""
    yield first
    size -= len(first[1])
    while size > 0 and (line := next(lines, None)) is not None:
        yield line
        size -= len(line[1])


def pieces_of(item: SplitItem, part: Partition) -> Sequence[Partition]:
    """The partitions that a cut file is read as; the given one if the file has no pieces."""
    starts = read_manifest(item.folder).facts["starts"]
    if not starts:
        return [part]
    if item.most is None:
        ends = pairwise([*starts, item.file.size])
        return [Partition(part.source, (Piece(item.file, start, end, end - start),)) for start, end in ends]
    copies = [File.local(item.folder / f"{number:05}.jsonl.zst", item.folder) for number in range(len(starts))]
    return [
        Partition(part.source, (Piece(item.file, start, end, copy.size, copy),))
        for (start, end), copy in zip(pairwise([*starts, None]), copies, strict=True)
    ]
