"""Find the scanned documents that earlier corpora have: a round of an increment, before duplicates are found.

Its folder has `00000.npy` … for each partition, bool [2, rows]: known ones, and new ones that were edited from a text
of the other split; `changes.json`; and `found.json`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import numpy as np
import pyarrow as pa
from pydantic import BaseModel

from baton.infra.storage.durable import new_folder, remove
from baton.infra.text import number
from baton.tasks.core.job import Input, StageError
from baton.tasks.core.manifest import json_key
from baton.tasks.data.compare import PLACED, Known
from baton.tasks.data.known_blocks import KnownBlocks
from baton.tasks.data.partition_cache import FolderCache
from baton.tasks.data.rounds import NOTHING, Report
from baton.tasks.data.scan import names_in

FOUND = "found.json"
SCANS = "partitions.json"  # in a corpus' record: the scans that it was made of


class Found(BaseModel):
    """Numbers of changes since the known corpora."""

    edited: int = 0
    renamed: int = 0
    deleted: int = 0
    gone: int = 0  # known documents that the source no longer has
    known_digest: str = ""  # see Corpus

    @classmethod
    def read(cls, folder: Path) -> "Found":
        return cls.model_validate_json((folder / FOUND).read_bytes())


@dataclass(frozen=True)
class KnownItem:
    """The comparison of all partitions with the earlier corpora, oldest first."""

    folder: Path
    corpora: Sequence[Input]
    scans: Sequence[Path]
    sources: Sequence[str]  # names; none if the corpus has a single source
    cache: FolderCache  # with blocks of earlier nights
    threads: int = 1

    def masks(self, partition: int) -> Path:
        return self.folder / f"{partition:05}.npy"


def find_known(item: KnownItem, report: Report) -> None:
    """Compare, unless the result exists. Raises StageError if a source has lost all its documents."""
    if item.folder.exists():
        return
    with new_folder(item.folder) as partial:
        known = Known(partial / "tables", item.threads)
        blocks = partial / "blocks"
        blocks.mkdir()
        KnownBlocks(known, blocks, item.cache, lambda done: report(0.5 * done / len(item.corpora), NOTHING)).add(
            item.corpora
        )
        remove(blocks)
        changes = known.compare(_today(item.scans))
        _refuse_lost(known, item.sources)
        edits = _write_masks(known, item.scans, partial)
        digests = [corpus.digest for corpus in item.corpora]
        gone = known.gone_documents(digests)
        known.close()
        remove(partial / "tables")
        changes.write(partial)
        gone.write(partial)
        lost = sum(map(len, gone.rows.values()))
        outcome = Found(
            edited=edits,
            renamed=len(changes.renamed),
            deleted=len(changes.deleted),
            gone=lost,
            known_digest=json_key(digests),
        )
        (partial / FOUND).write_text(outcome.model_dump_json())


def _today(scans: Sequence[Path]) -> Iterator[pa.RecordBatch]:
    for partition, scan in enumerate(scans):
        for batch in names_in(scan):
            places = batch["row"].to_numpy() + (partition << 32)
            yield pa.RecordBatch.from_arrays([batch["id"], batch["source"], pa.array(places)], schema=PLACED)


def _write_masks(known: Known, scans: Sequence[Path], folder: Path) -> int:
    """Write the masks of each partition. Returns the number of new documents that are edits."""
    edits = set[str]()
    new = groupby(known.new(), lambda entry: entry[0] >> 32)
    upcoming = next(new, None)
    for partition, scan in enumerate(scans):
        held_out = np.load(scan / "held_out.npy")
        masks = np.stack([np.ones(len(held_out), bool), np.zeros(len(held_out), bool)])
        if upcoming and upcoming[0] == partition:
            for place, document_id, split in upcoming[1]:
                row = place & 0xFFFFFFFF
                if split is not None:
                    edits.add(document_id)
                if row < len(held_out):  # not a copy, which has no row in the partition
                    masks[0, row] = False
                    masks[1, row] = split is not None and (split == "held_out") != held_out[row]
            upcoming = next(new, None)
        np.save(folder / f"{partition:05}.npy", masks)
    return len(edits)


def _refuse_lost(known: Known, sources: Sequence[str]) -> None:
    """Raise StageError for a source that has no documents now: that is an error rather than a deletion of all."""
    for name in sources or [""]:
        prefix = f"{name}/" if name else ""
        if not known.count_today(prefix) and (before := known.count_known(prefix)):
            source = f"sources.{name}" if name else "the source"
            fix = "; if all were deleted, remove it from sources" if name else ""
            raise StageError(
                f"{source} has no documents now, and {number(before)} of its documents are known: is its folder "
                f"mounted?{fix}"
            )
