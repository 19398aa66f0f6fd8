"""Read one partition of a source: its documents, decoded, curated and split, without copies within the partition.

    train-00000.parquet …, held_out-00000.parquet …    as in a corpus
    held_out.npy        bool of each row: which split it is in; rows are documents in the order of the source
    keys-00000.npy …    hashes of the rows' texts (exact_duplicates.py)
    copies.parquet      id and source of the copies that were dropped, if any
    signatures.u32 …    signatures of the rows, if near duplicates are dropped later (near_duplicates.py)
    manifest.json       its facts are `Scanned`

A partition is read by one process, which needs only the item and the source, and its folder is complete or missing. It
depends only on the partition's content and the item: not on the other partitions, nor on its number.
"""

import os
from codecs import BOM_UTF8
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel

from baton.tasks.core.job import StageError
from baton.tasks.core.manifest import read_manifest
from baton.tasks.data.curate import Curation
from baton.tasks.data.curate_spec import CurateStep, NearDuplicatesStep, step_names
from baton.tasks.data.curation_tally import Tally
from baton.tasks.data.documents import (
    SPLITS,
    Document,
    Split,
    SplitWriter,
    document_id,
    name_batches,
    split_files,
    split_of,
    write_names,
)
from baton.tasks.data.exact_duplicates import KeyWriter
from baton.tasks.data.near_duplicates import NearWriter
from baton.tasks.data.partition_cache import FolderCache, make_once
from baton.tasks.data.partitions import Partition
from baton.tasks.data.readers.raw import Broken, Raw, add_broken
from baton.tasks.data.rounds import NOTHING, Amount, Report
from baton.tasks.data.source_spec import AnySource, has_metadata
from baton.tasks.data.sources import read_source

COPIES = "copies.parquet"
SHOWN = 3  # documents in a message
REPORT_DOCUMENTS = 16  # documents between two reports


class Counts(BaseModel):
    """Numbers of skipped documents."""

    duplicates: int = 0
    empty: int = 0
    invalid_utf8: int = 0  # includes files with NUL characters
    invalid: list[str] = []  # the first of these

    def add(self, other: "Counts") -> None:
        self.duplicates += other.duplicates
        self.empty += other.empty
        self.invalid_utf8 += other.invalid_utf8
        self.invalid = [*self.invalid, *other.invalid][:SHOWN]


class Size(BaseModel):
    """The size of a split."""

    documents: int = 0
    bytes: int = 0

    def add(self, other: "Size") -> None:
        self.documents += other.documents
        self.bytes += other.bytes


class Scanned(BaseModel):
    """The contents of a partition."""

    splits: dict[Split, Size]
    counts: Counts
    tally: Tally
    broken: Broken  # the skipped parts, by file

    @property
    def rows(self) -> int:
        return sum(size.documents for size in self.splits.values())

    @classmethod
    def read(cls, folder: Path) -> "Scanned":
        return cls.model_validate(read_manifest(folder).facts)


@dataclass(frozen=True)
class ScanItem:
    """A partition to read, and the folder for it."""

    folder: Path
    partition: Partition
    source: AnySource
    steps: Sequence[CurateStep]
    near: NearDuplicatesStep | None
    held_out: float
    functions: Path  # a folder for users' functions
    cache: FolderCache | None  # for results of earlier corpora or other pods


def scan(item: ScanItem, report: Report) -> None:
    """Read a partition unless it was read before. Raises StageError, StorageError, OSError."""
    if not make_once(item.folder, "partition", item.cache, partial(_scan, item, report)):
        report(1.0, NOTHING)


def _scan(item: ScanItem, report: Report, folder: Path) -> dict[str, Any]:
    curation = curation_of(item.steps, item.functions)
    near = NearWriter(folder, item.near) if item.near else None
    name, counts, tally, broken = item.partition.source, Counts(), Tally(), Broken()
    writers: dict[Split, SplitWriter] = {
        split: SplitWriter(folder, split, metadata=has_metadata(item.source)) for split in SPLITS
    }
    keys, held_out, copies = KeyWriter(folder), bytearray(), list[tuple[str, str]]()
    number = text_bytes = 0
    prefix = f"{name}/" if name else ""
    documents = read_source(item.source, broken, item.partition.pieces or None, own_folder(item.functions))
    for number, raw in enumerate(documents, 1):
        text_bytes += len(raw.text)
        if not number % REPORT_DOCUMENTS:
            report(raw.done, Amount(number, text_bytes))
        valid = valid_document(raw, counts, prefix)
        document = curation.apply(valid, name, tally) if valid else None
        if document is None:
            continue
        if not keys.is_new(document.id):
            counts.duplicates += 1
            copies.append((document.id, document.source))
            continue
        split = split_of(document.id, item.held_out)
        held_out.append(split == "held_out")
        writers[split].add(document)
        if near:
            near.add(document)
    report(1.0, Amount(number, text_bytes))
    for writer in writers.values():
        writer.close()
    keys.close()
    if near:
        near.close()
    if copies:
        write_names(folder / COPIES, copies)
    np.save(folder / "held_out.npy", np.frombuffer(bytes(held_out), bool))
    for piece in item.partition.pieces:
        if piece.file.changed():
            raise StageError(f"{piece.file.place}: changed while it was read; run again when nothing writes to it")
    prefixed = Broken()
    add_broken(prefixed, broken, prefix)
    splits = {split: Size(documents=writer.documents, bytes=writer.bytes) for split, writer in writers.items()}
    return Scanned(splits=splits, counts=counts, tally=tally, broken=prefixed).model_dump(mode="json")


def names_in(scan: Path) -> Iterator[pa.RecordBatch]:
    """The columns id, source and row of the rows, one split after the other, and of the copies that were dropped, which
    are numbered after the last row."""
    held_out = np.load(scan / "held_out.npy")
    parts = [(split_files(scan, split), np.flatnonzero(held_out == (split == "held_out"))) for split in SPLITS]
    if (scan / COPIES).exists():
        copies = pq.read_metadata(scan / COPIES).num_rows
        parts.append(([scan / COPIES], len(held_out) + np.arange(copies)))
    for paths, rows in parts:
        start = 0
        for batch in name_batches(paths):
            yield batch.append_column("row", pa.array(rows[start : start + len(batch)]))
            start += len(batch)


def valid_document(raw: Raw, counts: Counts, prefix: str = "") -> Document | None:
    """The document, with a prefix to its source. One that is not UTF-8 or only white space is counted, and None is
    returned. UTF-16 without a byte order mark, and some binary files, are valid UTF-8 with NULs, which no text has."""
    try:
        text = raw.text.removeprefix(BOM_UTF8).decode()
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        counts.add(Counts(invalid_utf8=1, invalid=[f"{prefix}{raw.source}"]))
        return None
    if not text or text.isspace():
        counts.empty += 1
        return None
    return Document(document_id(raw.text), f"{prefix}{raw.source}", text, raw.metadata)


def curation_of(steps: Sequence[CurateStep], folder: Path, names: Sequence[str] | None = None) -> Curation:
    """The steps with this process's models, which several partitions use. `folder`: for all processes' functions."""
    return _curation(tuple(step.model_dump_json() for step in steps), folder, tuple(names or step_names(steps)))


def own_folder(functions: Path) -> Path:
    """This process's part of the folder of users' functions."""
    return functions / str(os.getpid())


@lru_cache(maxsize=1)
def _curation(steps: tuple[str, ...], folder: Path, names: tuple[str, ...]) -> Curation:
    return Curation([CurateStep.model_validate_json(step) for step in steps], own_folder(folder), names)
