"""Write the documents of one scanned partition that remain after the rounds over all partitions.

The folder has `train-00000.parquet` … and `held_out-00000.parquet` …, and `written.json`. Files from which nothing is
dropped are hard links to the scan's files.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import BaseModel

from baton.infra.storage.durable import new_folder
from baton.tasks.data.curate_spec import CurateStep
from baton.tasks.data.curation_tally import SAMPLES, Count, Tally
from baton.tasks.data.documents import (
    SPLITS,
    Split,
    SplitWriter,
    documents_in,
    row_groups,
    source_at,
    split_files,
)
from baton.tasks.data.exact_duplicates import Places, drops_of
from baton.tasks.data.rounds import Amount, Report
from baton.tasks.data.scan import Scanned, Size, curation_of

WRITTEN = "written.json"
REASON = "near duplicate"

Mask = npt.NDArray[np.bool_]


class Written(BaseModel):
    """The remaining documents of a partition."""

    known: int  # documents in earlier corpora
    duplicates: int  # of documents in this partition or earlier ones
    tally: Tally
    splits: dict[Split, Size]

    @classmethod
    def read(cls, folder: Path) -> "Written":
        return cls.model_validate_json((folder / WRITTEN).read_bytes())


@dataclass(frozen=True)
class WriteItem:
    """A scanned partition, and the folder for its documents."""

    folder: Path
    scan: Path
    number: int  # among the corpus' partitions
    source: str | None
    duplicates: Sequence[Path]  # drops of all partitions
    near_duplicates: Sequence[Path]
    scans: Sequence[Path]  # of all partitions: a sample names the document that it is similar to
    near: str | None  # the name of the step that finds near duplicates
    steps: Sequence[CurateStep]  # after it; they only drop documents
    names: Sequence[str]  # of these steps
    functions: Path  # a folder for users' functions
    known: Path | None = None  # in an increment, the rows that earlier corpora have (known_documents.py)


def write(item: WriteItem, report: Report) -> None:
    """Write a partition unless it exists. Raises StageError."""
    if item.folder.exists():
        return
    with new_folder(item.folder) as partial:
        written = _write(item, partial, report)
        (partial / WRITTEN).write_text(written.model_dump_json())


def _write(item: WriteItem, folder: Path, report: Report) -> Written:
    scanned, held_out = Scanned.read(item.scan), np.load(item.scan / "held_out.npy")
    known, moved = np.load(item.known) if item.known else np.zeros((2, len(held_out)), bool)
    copies = _mask(len(held_out), drops_of(item.number, item.duplicates)) & ~known
    drops = drops_of(item.number, item.near_duplicates)
    rows = _Rows(known, copies, _mask(len(held_out), drops), np.zeros(len(held_out), np.uint64))
    rows.earlier[drops[:, 0].astype(np.int64)] = drops[:, 1]
    written = Written(known=int(known.sum()), duplicates=int(copies.sum()), tally=Tally(), splits={})
    text_bytes = sum(size.bytes for size in scanned.splits.values())
    for number, split in enumerate(SPLITS):
        in_split = held_out == (split == "held_out")
        if item.steps or item.near or moved.any() or (known | copies)[in_split].any():
            writer = SplitWriter(folder, split)
            for origin in sorted(SPLITS, key=lambda origin: origin != split):  # moved ones last
                in_origin = in_split if origin == split else ~in_split
                _filter(item, writer, origin, rows, in_origin, moved ^ (origin == split), written.tally)
            writer.close()
            written.splits[split] = Size(documents=writer.documents, bytes=writer.bytes)
        else:
            written.splits[split] = scanned.splits[split]
            for path in split_files(item.scan, split):
                os.link(path, folder / path.name)
        report((number + 1) / len(SPLITS), Amount(len(held_out), text_bytes))
    return written


@dataclass(frozen=True)
class _Rows:
    """The reasons for dropping rows of a partition, as masks."""

    known: Mask  # in earlier corpora
    copies: Mask
    similar: Mask  # to earlier ones, or known ones
    earlier: Places  # the document that each of these is similar to

    def __getitem__(self, chosen: Mask | slice) -> "_Rows":
        return _Rows(self.known[chosen], self.copies[chosen], self.similar[chosen], self.earlier[chosen])


def _mask(rows: int, drops: Places) -> Mask:
    mask = np.zeros(rows, bool)
    mask[drops[:, 0].astype(np.int64)] = True
    return mask


def _filter(
    item: WriteItem, writer: SplitWriter, origin: Split, rows: _Rows, in_origin: Mask, chosen: Mask, tally: Tally
) -> None:
    """Write the `chosen` rows of the split `origin` that are neither known nor copies nor similar to others and pass
    the last steps. `in_origin`: the partition's rows in that split. Row groups without such rows are not read."""
    chosen = chosen[in_origin] & ~rows.known[in_origin] & ~rows.copies[in_origin]
    rows = rows[in_origin]
    curation = curation_of(item.steps, item.functions, item.names)
    start = 0
    for group in row_groups(item.scan, origin) if chosen.any() else ():
        span = slice(start, start + group.rows())
        start = span.stop
        if not chosen[span].any():
            continue
        table, chosen_rows = group.read().filter(pa.array(chosen[span])), rows[span][chosen[span]]
        if item.near:
            _count_similar(tally.of(item.near, item.source), table, chosen_rows, item.scans)
            table = table.filter(pa.array(~chosen_rows.similar))
        if item.steps:
            keep = [curation.apply(document, item.source, tally) is not None for document in documents_in(table)]
            table = table.filter(pa.array(keep, pa.bool_()))
        writer.add_table(table)


def _count_similar(count: Count, table: pa.Table, rows: _Rows, scans: Sequence[Path]) -> None:
    count.documents += len(table)
    count.bytes += int(pc.sum(pc.binary_length(table["text"])).as_py() or 0)
    similar = documents_in(table.filter(pa.array(rows.similar)))
    for document, place in zip(similar, rows.earlier[rows.similar].tolist(), strict=True):
        is_sample = len(count.samples.get(REASON, [])) < SAMPLES
        what = f"{REASON} of {_source_at(scans, place)}" if is_sample else ""
        count.drop(document, len(document.text.encode()), REASON, what)


def _source_at(scans: Sequence[Path], place: int) -> str:
    """The `source` of the document at `partition << 32 | row`."""
    scan, row = scans[place >> 32], place & 0xFFFFFFFF
    held_out = np.load(scan / "held_out.npy", mmap_mode="r")
    split: Split = "held_out" if held_out[row] else "train"
    return source_at(scan, split, int((held_out[:row] == held_out[row]).sum()))
