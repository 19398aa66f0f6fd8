"""Read one partition of a source: its documents, decoded, curated and split, without copies within the partition.

    train-00000.parquet …, held_out-00000.parquet …    as in a corpus
    held_out.npy        bool of each row: which split it is in; rows are documents in the order of the source
    keys-00000.npy …    hashes of the rows' texts (exact_duplicates.py)
    signatures.u32 …    their signatures, if near duplicates are to be found (near_duplicates.py)
    manifest.json       its facts are `Scanned`

A partition is read by one process, which needs nothing but the item and the source, and its folder is complete or
missing. It depends on nothing but the partition's content and the item: not on the other partitions, nor on its number.
"""

import os
from codecs import BOM_UTF8
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from pydantic import BaseModel

from tasks.data.curate import Curation
from tasks.data.curate_spec import CurateStep, NearDuplicatesStep, step_names
from tasks.data.curation_tally import Tally
from tasks.data.documents import SPLITS, Document, Split, SplitWriter, document_id, split_of
from tasks.data.exact_duplicates import KeyWriter
from tasks.data.kept_scans import KeptScans, is_intact
from tasks.data.near_duplicates import NearWriter
from tasks.data.partitions import Partition
from tasks.data.rounds import Report, put
from tasks.data.source_spec import AnySource
from tasks.data.sources import Raw, read_source
from tasks.data.stored_scans import StoredScans
from tasks.manifest import read_manifest, remove, write_manifest

REPORT_DOCUMENTS = 16  # between two reports


class Counts(BaseModel):
    """Numbers of skipped documents."""

    duplicates: int = 0
    empty: int = 0
    invalid_utf8: int = 0

    def add(self, other: "Counts") -> None:
        self.duplicates += other.duplicates
        self.empty += other.empty
        self.invalid_utf8 += other.invalid_utf8


class Size(BaseModel):
    """Of a split."""

    documents: int = 0
    bytes: int = 0

    def add(self, other: "Size") -> None:
        self.documents += other.documents
        self.bytes += other.bytes


class Scanned(BaseModel):
    """What was found in a partition."""

    splits: dict[Split, Size]
    counts: Counts
    tally: Tally
    broken: list[str]  # what is wrong with each file that was skipped

    @property
    def rows(self) -> int:
        return sum(size.documents for size in self.splits.values())

    @classmethod
    def read(cls, folder: Path) -> "Scanned":
        return cls.model_validate(read_manifest(folder).facts)


@dataclass(frozen=True)
class ScanItem:
    """A partition to read, and where to."""

    folder: Path
    partition: Partition
    source: AnySource
    steps: Sequence[CurateStep]
    near: NearDuplicatesStep | None
    held_out: float
    functions: Path  # a folder for users' functions
    kept: KeptScans | StoredScans | None  # where results of earlier corpora, or other pods, may be


def scan(item: ScanItem, report: Report) -> None:
    """Read a partition unless it was read before. Raises StageError, StorageError, OSError."""
    if is_intact(item.folder) or (item.kept and item.kept.take(item.folder)):
        report(1.0, 0)
        return
    remove(item.folder)
    partial = item.folder.with_name(f"{item.folder.name}.{os.getpid()}.partial")
    remove(partial)
    partial.mkdir(parents=True)
    scanned = _scan(item, partial, report)
    write_manifest(partial, "partition", scanned.model_dump(mode="json"))
    put(partial, item.folder)
    if item.kept:
        item.kept.keep(item.folder)


def _scan(item: ScanItem, folder: Path, report: Report) -> Scanned:
    curation = curation_of(item.steps, item.functions)
    near = NearWriter(folder, item.near) if item.near else None
    name, counts, tally, broken = item.partition.source, Counts(), Tally(), list[str]()
    writers: dict[Split, SplitWriter] = {split: SplitWriter(folder, split) for split in SPLITS}
    keys, held_out = KeyWriter(folder), bytearray()
    for number, raw in enumerate(read_source(item.source, broken, item.partition.pieces or None)):
        if not number % REPORT_DOCUMENTS:
            report(raw.done, number)
        found = valid_document(raw, counts, f"{name}/" if name else "")
        document = curation.apply(found, name, tally) if found else None
        if document is None:
            continue
        if not keys.is_new(document.id):
            counts.duplicates += 1
            continue
        split = split_of(document.id, item.held_out)
        held_out.append(split == "held_out")
        writers[split].add(document)
        if near:
            near.add(document)
    for writer in writers.values():
        writer.close()
    keys.close()
    if near:
        near.close()
    np.save(folder / "held_out.npy", np.frombuffer(bytes(held_out), bool))
    splits = {split: Size(documents=writer.documents, bytes=writer.bytes) for split, writer in writers.items()}
    return Scanned(splits=splits, counts=counts, tally=tally, broken=broken)


def valid_document(raw: Raw, counts: Counts, prefix: str = "") -> Document | None:
    """The document, with a prefix to its source; None, and counted, if it is not UTF-8 or only white space."""
    try:
        text = raw.text.removeprefix(BOM_UTF8).decode()
    except UnicodeDecodeError:
        counts.invalid_utf8 += 1
        return None
    if not text or text.isspace():
        counts.empty += 1
        return None
    return Document(document_id(raw.text), f"{prefix}{raw.source}", text)


def curation_of(steps: Sequence[CurateStep], folder: Path, names: Sequence[str] | None = None) -> Curation:
    """The steps with this process's models, which several partitions use. `folder`: of all processes' functions."""
    return _curation(tuple(step.model_dump_json() for step in steps), folder, tuple(names or step_names(steps)))


@lru_cache(maxsize=1)
def _curation(steps: tuple[str, ...], folder: Path, names: tuple[str, ...]) -> Curation:
    return Curation([CurateStep.model_validate_json(step) for step in steps], folder / str(os.getpid()), names)
