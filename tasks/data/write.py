"""Write the documents of one scanned partition that are left after the rounds over all partitions.

Its folder has `train-00000.parquet` … and `held_out-00000.parquet` …, and `written.json`. Files from which nothing is
dropped are those of the scan, linked and not copied.
"""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pydantic import BaseModel

from infra.durable import rename, sync_tree
from tasks.data.documents import SPLITS, Split, SplitWriter, read_table, row_groups, split_files
from tasks.data.exact_duplicates import drops_of
from tasks.data.rounds import Report
from tasks.data.scan import Scanned, Size

WRITTEN = "written.json"

Mask = npt.NDArray[np.bool_]


class Written(BaseModel):
    """What is left of a partition."""

    duplicates: int  # of documents in this partition or earlier ones
    splits: dict[Split, Size]

    @classmethod
    def read(cls, folder: Path) -> "Written":
        return cls.model_validate_json((folder / WRITTEN).read_bytes())


@dataclass(frozen=True)
class WriteItem:
    """A scanned partition, and where its documents are written."""

    folder: Path
    scan: Path
    number: int  # among the corpus' partitions
    duplicates: list[Path]  # drops of all partitions


def write(item: WriteItem, report: Report) -> None:
    """Write a partition unless it is there."""
    if item.folder.exists():
        return
    partial = item.folder.with_name(f"{item.folder.name}.{os.getpid()}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    held_out = np.load(item.scan / "held_out.npy")
    dropped = np.zeros(len(held_out), bool)
    dropped[drops_of(item.number, item.duplicates)[:, 0].astype(np.int64)] = True
    written = Written(duplicates=int(dropped.sum()), splits={})
    scanned = Scanned.read(item.scan)
    for split in SPLITS:
        kept = ~dropped[held_out == (split == "held_out")]
        if kept.all():
            written.splits[split] = scanned.splits[split]
            for path in split_files(item.scan, split):
                os.link(path, partial / path.name)
        else:
            written.splits[split] = _write(item.scan, partial, split, kept)
        report(len(written.splits) / len(SPLITS), len(held_out))
    (partial / WRITTEN).write_text(written.model_dump_json())
    sync_tree(partial)
    rename(partial, item.folder)


def _write(scan: Path, folder: Path, split: Split, kept: Mask) -> Size:
    writer = SplitWriter(folder, split)
    start = 0
    for group in row_groups(scan, split):
        table = read_table(group)
        writer.add_table(table.filter(pa.array(kept[start : start + len(table)])))
        start += len(table)
    writer.close()
    return Size(documents=writer.documents, bytes=writer.bytes)
