"""Find the changes of a source since the known corpora (source_changes.py) in tables of names and ids, with DuckDB.

A name has one document, and a document one name; the last statement of the corpora about either counts. So the state
after them follows from the times of the statements, without applying these in order; and the statements can be written
to a file with their times, to be read instead of the corpora:

    names.parquet    columns time, name, id, said ("train", "held_out", "moved", "deleted")
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from baton.tasks.core.manifest import read_manifest
from baton.tasks.data.documents import NAMES, SPLITS, Split, name_batches, split_files, stem_of
from baton.tasks.data.gone import GoneDocuments
from baton.tasks.data.source_changes import CHANGES, Changes, Edited, Named, Renamed

MEMORY_MB = 768  # of DuckDB, which spills the rest to files. At 512, joins of 20 million documents run out of memory
ROWS = 1 << 16  # rows of a result that are in memory at a time
BLOCK = "names.parquet"
PLACED = NAMES.append(pa.field("place", pa.int64()))

# the statements of the corpora, each with its time, and the source's documents today
_TABLES = """
CREATE TABLE added (time BIGINT, name VARCHAR, id VARCHAR, split VARCHAR);
CREATE TABLE moved (time BIGINT, name VARCHAR, id VARCHAR);
CREATE TABLE deleted (time BIGINT, name VARCHAR, id VARCHAR);
CREATE TABLE today (place BIGINT, name VARCHAR, id VARCHAR);

CREATE VIEW named AS
SELECT time, name, id FROM added UNION ALL SELECT time, name, id FROM moved
WHERE EXISTS (SELECT 1 FROM added WHERE added.id = moved.id AND added.time < moved.time);

CREATE VIEW documents AS SELECT id, min(time) AS first, max(time) AS last FROM named GROUP BY id;

CREATE VIEW names AS
SELECT name, id FROM (SELECT name, max(time) AS last FROM named GROUP BY name) latest JOIN documents USING (last)
WHERE NOT EXISTS (
  SELECT 1 FROM deleted WHERE deleted.name = latest.name AND deleted.id = documents.id AND deleted.time > last
);

CREATE VIEW lost AS
SELECT name, id FROM deleted JOIN (SELECT max(time) AS time FROM deleted GROUP BY name) USING (time)
WHERE NOT EXISTS (SELECT 1 FROM named WHERE named.name = deleted.name AND named.time > deleted.time);
"""
# statements that no longer count, whatever follows: moves of unknown documents; moves after which both the name and the
# document were in others; deletions that were repeated or after which the name was used
_FORGET = """
DELETE FROM moved WHERE NOT EXISTS (SELECT 1 FROM added WHERE added.id = moved.id AND added.time < moved.time) OR (
  EXISTS (SELECT 1 FROM named WHERE named.id = moved.id AND named.time > moved.time)
  AND EXISTS (SELECT 1 FROM named WHERE named.name = moved.name AND named.time > moved.time)
);
DELETE FROM deleted WHERE EXISTS (SELECT 1 FROM named WHERE named.name = deleted.name AND named.time > deleted.time)
OR EXISTS (
  SELECT 1 FROM deleted later
  WHERE later.name = deleted.name AND later.id = deleted.id AND later.time > deleted.time
);
"""
# `known`: the documents with their names, if any. `seen`: the documents of `today` that are not in `known` under the
# same name (not at all if `first` is NULL), and those of `known` that are not in `today` (`place` is NULL)
_COMPARE = """
CREATE OR REPLACE TABLE known AS SELECT id, first, name FROM documents LEFT JOIN names USING (id);

CREATE OR REPLACE TABLE seen AS
SELECT place, today.name, id, first, known.name AS before FROM today FULL JOIN known USING (id)
WHERE place IS NULL OR first IS NULL OR today.name IS DISTINCT FROM known.name;

CREATE OR REPLACE TABLE edited AS
SELECT place, name, absent.id AS before, seen.id AS after, absent.first FROM seen JOIN (
  SELECT before AS name, id, first FROM seen WHERE place IS NULL AND before IS NOT NULL
  UNION ALL SELECT lost.name, id, first FROM lost LEFT JOIN known USING (id)
  WHERE NOT EXISTS (SELECT 1 FROM today WHERE today.id = lost.id)
  AND NOT EXISTS (SELECT 1 FROM known WHERE known.name = lost.name)
) absent USING (name) WHERE place IS NOT NULL AND seen.before IS NULL;
"""
_EDITED = "SELECT name, before, after FROM edited ORDER BY place"
_RENAMED = """
SELECT id, before, name FROM seen WHERE place IN (
  SELECT min(place) FROM seen WHERE place IS NOT NULL AND before IS NOT NULL
  AND NOT EXISTS (SELECT 1 FROM today WHERE today.id = seen.id AND today.name = seen.before) GROUP BY id
) ORDER BY place
"""
_RETURNED = """
SELECT name, id FROM seen WHERE place IN (
  SELECT min(place) FROM seen WHERE place IS NOT NULL AND first IS NOT NULL AND before IS NULL
  AND NOT EXISTS (SELECT 1 FROM edited WHERE after = seen.id) GROUP BY id
) ORDER BY place
"""
_DELETED = """
SELECT before, id FROM seen WHERE place IS NULL AND before IS NOT NULL
AND NOT EXISTS (SELECT 1 FROM edited WHERE edited.name = seen.before) ORDER BY before
"""
_GONE = "SELECT time FROM added WHERE id IN (SELECT id FROM seen WHERE place IS NULL) ORDER BY time"
_NEW = """
SELECT place, id, split FROM seen LEFT JOIN (
  SELECT after AS id, split FROM edited JOIN added ON time = edited.first
  WHERE place IN (SELECT min(place) FROM edited GROUP BY after)
) USING (id) WHERE seen.first IS NULL ORDER BY place
"""


class _Part(NamedTuple):
    """The documents of a corpus in one part, as they were added."""

    digest: str  # the corpus's digest
    stem: str  # stem of the names of the part's files
    start: int  # the time of the first document
    end: int  # place after the last one

    def later(self, time: int) -> "_Part":
        return self._replace(start=self.start + time, end=self.end + time)


class Known:
    """Every document of some corpora, the source's state at the last of them, and its state today. The tables are in
    DuckDB, which has up to `MEMORY_MB` in memory and, with a `folder`, the rest there."""

    def __init__(self, folder: Path | None = None, threads: int = 1) -> None:
        import duckdb  # only increments need it

        settings: dict[str, Any] = {
            "threads": threads,
            "memory_limit": f"{MEMORY_MB}MB",
            "preserve_insertion_order": False,  # times and places are the order
            "autoinstall_known_extensions": False,  # that is, downloaded
        }
        if folder:
            folder.mkdir()
            settings["temp_directory"] = str(folder / "spilled")
        self.tables = duckdb.connect(folder / "tables.duckdb" if folder else ":memory:", config=settings)
        self.tables.execute(_TABLES)
        self.time = 0  # time of the statement that comes next
        self._parts: list[_Part] = []

    def add(self, corpus: Path, digest: str) -> None:
        """Add the next corpus."""
        for split in SPLITS:
            for part, paths in groupby(split_files(corpus, split), stem_of):
                start = self.time
                self.add_documents(name_batches(paths), split)
                self._parts.append(_Part(digest, part, start, self.time))
        if (corpus / CHANGES).exists():
            self.apply(Changes.read(corpus))

    def add_documents(self, names: Iterable[pa.RecordBatch], split: Split) -> None:
        """Add documents of a corpus: columns id, source."""
        self._insert(f"added SELECT place, source, id, '{split}'", map(self._timed, names))

    def apply(self, changes: Changes) -> None:
        """Apply the other changes of the source that were found with a corpus."""
        moves = [(item.after, item.id) for item in changes.renamed]
        moves += [(item.source, item.after) for item in changes.edited]
        moves += [(item.source, item.id) for item in changes.returned]
        for table, pairs in (("deleted", [(item.source, item.id) for item in changes.deleted]), ("moved", moves)):
            names = pa.RecordBatch.from_pylist([{"id": key, "source": name} for name, key in pairs], NAMES)
            self._insert(f"{table} SELECT place, source, id", [self._timed(names)])

    def write(self, folder: Path, since: int) -> dict[str, Any]:
        """Write the statements from a time on as `names.parquet`; returns the facts that `read` needs."""
        tables = [("added", "split"), ("moved", "'moved'"), ("deleted", "'deleted'")]
        statements = " UNION ALL ".join(
            f"SELECT time - {since} AS time, name, id, {what} AS said FROM {table} WHERE time >= {since}"
            for table, what in tables
        )
        ordered = self.tables.sql(f"{statements} ORDER BY time")  # the same bytes in every pod, whatever the threads
        ordered.write_parquet(str(folder / BLOCK), compression="zstd", row_group_size=ROWS)
        parts = [part.later(-since) for part in self._parts if part.end > since]
        return {"time": self.time - since, "parts": [list(part) for part in parts]}

    def read(self, folder: Path) -> None:
        """Add the corpora that `write` wrote to a folder, as the next ones."""
        facts = read_manifest(folder).facts
        for table, columns, condition in (
            ("added", "name, id, said", "said NOT IN ('moved', 'deleted')"),
            ("moved", "name, id", "said = 'moved'"),
            ("deleted", "name, id", "said = 'deleted'"),
        ):
            query = f"INSERT INTO {table} SELECT time + ?, {columns} FROM read_parquet(?) WHERE {condition}"
            self.tables.execute(query, [self.time, str(folder / BLOCK)])
        self._parts += [_Part(*part).later(self.time) for part in facts["parts"]]
        self.time += facts["time"]

    def forget(self) -> None:
        """Drop statements that can no longer influence a comparison."""
        self.tables.execute(_FORGET)

    def compare(self, today: Iterable[pa.RecordBatch]) -> Changes:
        """The changes from the known state to the source's documents, given as columns id, source, place."""
        self.tables.execute("TRUNCATE today")
        self._insert("today SELECT place, source, id", today)
        self.tables.execute(_COMPARE)
        return Changes(
            edited=[Edited(source=name, before=old, after=new) for name, old, new in self._rows(_EDITED)],
            renamed=[Renamed(id=key, before=old, after=new) for key, old, new in self._rows(_RENAMED)],
            returned=[Named(source=name, id=key) for name, key in self._rows(_RETURNED)],
            deleted=[Named(source=name, id=key) for name, key in self._rows(_DELETED)],
        )

    def new(self) -> Iterator[tuple[int, str, Split | None]]:
        """The place and id of every document of today that is not known, in order, after `compare`; and the split of
        the text that it was edited from, if any; if there are several, the first counts."""
        return self._rows(_NEW)

    def gone_documents(self, corpora: Sequence[str]) -> GoneDocuments:
        """The documents of the corpora, given by their digests, that are not in the source now, after `compare`."""
        times = self.tables.execute(_GONE).fetchnumpy()["time"]
        starts = np.searchsorted(times, [part.start for part in self._parts])
        ends = np.searchsorted(times, [part.end for part in self._parts])
        spans = zip(self._parts, starts, ends, strict=True)
        return GoneDocuments(
            {(part.digest, part.stem): times[a:b] - part.start for part, a, b in spans if b > a}, corpora
        )

    def count_known(self, prefix: str = "") -> int:
        """The number of known names with this prefix, after `compare`."""
        return self._count("known", prefix)

    def count_today(self, prefix: str = "") -> int:
        """The number of today's names with this prefix."""
        return self._count("today", prefix)

    def close(self) -> None:
        self.tables.close()

    def _timed(self, names: pa.RecordBatch) -> pa.RecordBatch:
        """Add a column `place` with the time of each statement."""
        start, self.time = self.time, self.time + len(names)
        return names.append_column("place", pa.array(np.arange(start, self.time)))

    def _insert(self, query: str, batches: Iterable[pa.RecordBatch]) -> None:
        self.tables.register("batches", pa.RecordBatchReader.from_batches(PLACED, batches))
        self.tables.execute(f"INSERT INTO {query} FROM batches")
        self.tables.unregister("batches")

    def _rows(self, query: str, *values: str) -> Iterator[Any]:
        found = self.tables.execute(query, values)
        while rows := found.fetchmany(ROWS):
            yield from rows

    def _count(self, table: str, prefix: str) -> int:
        query = f"SELECT count(*) FROM {table} WHERE starts_with(name, ?)"
        (number,) = next(self._rows(query, prefix))
        return int(number)
