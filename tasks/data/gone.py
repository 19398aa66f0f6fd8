"""The known documents that are not in the source at an increment, by their places.

    gone.arrow   columns corpus (its digest), part (the stem of its files: train, train-web, held_out), rows (in the
                 part, from 0). Arrow IPC, with one row for each part of a known corpus that has such documents; zstd
                 leaves less than two bytes of each document.
    gone.json    {corpus: {part: number of such documents}} of every known corpus, oldest first

After many nights neither is small, so they are files: the manifests of all nights are read each night.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import feather

from baton.infra.storage.durable import write_json
from baton.tasks.core.job import StageError
from baton.tasks.core.manifest import read_manifest
from baton.tasks.data.source_changes import GONE, GONE_COUNTS

_SCHEMA = pa.schema([("corpus", pa.string()), ("part", pa.string()), ("rows", pa.list_(pa.int64()))])

Mask = npt.NDArray[np.bool_]
Rows = npt.NDArray[np.int64]
CorpusPart = tuple[str, str]  # a corpus' digest, and the stem of its files
Counts = dict[str, dict[str, int]]  # documents by corpus and part


@dataclass(frozen=True)
class GoneDocuments:
    """The rows of each part, in ascending order."""

    rows: dict[CorpusPart, Rows]
    known: Sequence[str] = ()  # digests of the corpora that it covers

    def write(self, folder: Path) -> None:
        write_json(folder / GONE_COUNTS, self.counts())
        columns = [[digest for digest, _ in self.rows], [part for _, part in self.rows], [*self.rows.values()]]
        feather.write_feather(pa.table(columns, schema=_SCHEMA), folder / GONE, compression="zstd")

    @classmethod
    def read(cls, increment: Path) -> "GoneDocuments":
        """Read the list of an increment. Raises StageError if the corpus is no increment."""
        if not (increment / GONE).exists():
            raise StageError(f"{increment}: has no {GONE}, so it is not an increment; give a corpus made by `find_new`")
        table = feather.read_table(increment / GONE, memory_map=False)
        parts = zip(table["corpus"].to_pylist(), table["part"].to_pylist(), strict=True)
        known = [*gone_counts(increment), read_manifest(increment).digest]
        return cls({part: rows.values.to_numpy() for part, rows in zip(parts, table["rows"], strict=True)}, known)

    def counts(self) -> Counts:
        """The number of rows of each known corpus, by part."""
        counts: Counts = {digest: {} for digest in self.known}
        for (digest, part), rows in self.rows.items():
            counts.setdefault(digest, {})[part] = len(rows)
        return counts

    def present(self, part: CorpusPart, sizes: Sequence[int]) -> list[Mask]:
        """Return a mask of the documents in the source for each file of a part, with these sizes. Raises StageError."""
        rows, documents, (digest, name) = self.rows.get(part, np.empty(0, np.int64)), sum(sizes), part
        if digest not in self.known:
            raise StageError(
                f"corpus {digest[:12]}: the increment does not list its documents that are gone; give corpora that "
                "were `known` to it"
            )
        if len(rows) and rows[-1] >= documents:
            raise StageError(f"corpus {digest[:12]}: has {documents} documents in {name}, and row {rows[-1]} is gone")
        mask = np.ones(documents, bool)
        mask[rows] = False
        return np.split(mask, np.cumsum(sizes)[:-1])


def gone_counts(increment: Path) -> Counts:
    """`gone.json`, which needs no other file of the increment."""
    return dict(json.loads((increment / GONE_COUNTS).read_bytes()))
