"""Detect how a source has changed since the known corpora were made, from its documents' names and ids.

A document is identified by its text (its id); a name is where the text was found. If a name is in several corpora the
newest counts, and each increment's `changes.json` also lists what was renamed and deleted. So the corpora in order
describe the source at the time of the last one.

    new        unknown text under an unknown name: the increment's documents that are no edits
    edited     a name whose previous text is no longer in the source, and its current text
    renamed    known text that moved to another name
    returned   known text that had been deleted
    deleted    a name that no longer exists, or that a renamed document took over, and its text
    gone       every known text that is not in the source now

New text under the name of a document that was renamed is not an edit. Rotating files, or inserting a line before all
others, therefore creates new documents. Text that was both renamed and edited cannot be told from new text.
"""

import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path

from pydantic import BaseModel

from tasks.data.documents import SPLITS, Split, read_names
from tasks.job import StageError

CHANGES = "changes.json"
CACHE_MB = 256  # of the tables, in memory

_TABLES = f"""
PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; PRAGMA cache_size = -{CACHE_MB * 1000};
CREATE TABLE documents (number INTEGER PRIMARY KEY, id TEXT UNIQUE, split TEXT);
CREATE TABLE names (name TEXT PRIMARY KEY, id TEXT UNIQUE) WITHOUT ROWID;
CREATE TABLE lost (name TEXT PRIMARY KEY, id TEXT) WITHOUT ROWID;
CREATE TABLE today (place INTEGER PRIMARY KEY, name TEXT, id TEXT);
CREATE TABLE edited (place INTEGER PRIMARY KEY, name TEXT, before TEXT, after TEXT);
CREATE INDEX edited_names ON edited (name); CREATE INDEX edited_after ON edited (after);
"""
_ABSENT = """
SELECT name, id FROM names WHERE NOT EXISTS (SELECT 1 FROM today WHERE today.id = names.id)
UNION ALL SELECT name, id FROM lost
WHERE NOT EXISTS (SELECT 1 FROM today WHERE today.id = lost.id)
AND NOT EXISTS (SELECT 1 FROM names WHERE names.name = lost.name)
"""
_EDITED = f"""
INSERT INTO edited SELECT place, today.name, absent.id, today.id FROM today JOIN ({_ABSENT}) absent USING (name)
WHERE NOT EXISTS (SELECT 1 FROM names WHERE names.id = today.id)
"""
_RENAMED = """
SELECT today.id, names.name, today.name, min(place) FROM today JOIN names USING (id)
WHERE NOT EXISTS (SELECT 1 FROM today same WHERE same.id = names.id AND same.name = names.name)
GROUP BY today.id ORDER BY min(place)
"""
_RETURNED = """
SELECT today.name, today.id, min(place) FROM today JOIN documents USING (id)
WHERE NOT EXISTS (SELECT 1 FROM names WHERE names.id = today.id)
AND NOT EXISTS (SELECT 1 FROM edited WHERE after = today.id)
GROUP BY today.id ORDER BY min(place)
"""
_DELETED = """
SELECT name, id FROM names WHERE NOT EXISTS (SELECT 1 FROM today WHERE today.id = names.id)
AND NOT EXISTS (SELECT 1 FROM edited WHERE edited.name = names.name)
"""
_GONE = """
SELECT id FROM documents WHERE NOT EXISTS (SELECT 1 FROM today WHERE today.id = documents.id) ORDER BY number
"""
_NEW = """
SELECT place, today.id, (
  SELECT split FROM documents WHERE id = (SELECT before FROM edited WHERE after = today.id ORDER BY place LIMIT 1)
) FROM today WHERE NOT EXISTS (SELECT 1 FROM documents WHERE documents.id = today.id) ORDER BY place
"""


class Named(BaseModel):
    source: str
    id: str


class Edited(BaseModel):
    source: str
    before: str  # ids
    after: str


class Renamed(BaseModel):
    id: str
    before: str  # names
    after: str


class Changes(BaseModel):
    """`changes.json`."""

    edited: list[Edited] = []
    renamed: list[Renamed] = []
    returned: list[Named] = []
    deleted: list[Named] = []
    gone: list[str] = []  # ids

    def write(self, corpus: Path) -> None:
        (corpus / CHANGES).write_text(self.model_dump_json(indent=1))

    @classmethod
    def read(cls, corpus: Path) -> "Changes":
        """The changes of an increment. Raises StageError if the corpus is not one."""
        if not (corpus / CHANGES).exists():
            raise StageError(f"{corpus}: has no {CHANGES}, so it is not an increment; give a corpus made by `find_new`")
        return cls.model_validate_json((corpus / CHANGES).read_bytes())


class Known:
    """Every document of some corpora, the source's state at the last of them, and its state today. In a SQLite file of
    about 540 bytes per document, so that memory grows less than their number does (docs/benchmarks.md)."""

    def __init__(self, file: Path | str = ":memory:") -> None:
        self.tables = sqlite3.connect(file, isolation_level=None)
        self.tables.executescript(_TABLES)

    def add(self, corpus: Path) -> None:
        """Add the next corpus."""
        self.tables.execute("BEGIN")
        for split in SPLITS:
            for document_id, name in read_names(corpus, split):
                self.add_document(name, document_id, split)
        self.tables.execute("COMMIT")
        if (corpus / CHANGES).exists():
            self.apply(Changes.read(corpus))

    def add_document(self, name: str, document_id: str, split: Split) -> None:
        """Add a document of a corpus."""
        self.tables.execute("INSERT OR IGNORE INTO documents (id, split) VALUES (?, ?)", (document_id, split))
        self._put(name, document_id)

    def apply(self, changes: Changes) -> None:
        """Apply the other changes of the source that were found with a corpus."""
        self.tables.execute("BEGIN")
        for item in changes.deleted:
            self.tables.execute("INSERT OR REPLACE INTO lost VALUES (?, ?)", (item.source, item.id))
            self.tables.execute("DELETE FROM names WHERE name = ? AND id = ?", (item.source, item.id))
        moves = [(item.after, item.id) for item in changes.renamed]
        moves += [(item.source, item.after) for item in changes.edited]
        moves += [(item.source, item.id) for item in changes.returned]
        for name, document_id in moves:
            if self._one("SELECT 1 FROM documents WHERE id = ?", document_id):
                self._put(name, document_id)
        self.tables.execute("COMMIT")

    def _put(self, name: str, document_id: str) -> None:
        """Give a document a name, and remove its other name and the name's other document, as REPLACE does."""
        self.tables.execute("INSERT OR REPLACE INTO names VALUES (?, ?)", (name, document_id))
        self.tables.execute("DELETE FROM lost WHERE name = ?", (name,))

    def compare(self, today: Iterable[tuple[int, str, str]]) -> Changes:
        """The changes from the known state to the source's documents: (place, name, id), in the order of places."""
        self.tables.executescript("DELETE FROM today; DELETE FROM edited; DROP INDEX IF EXISTS today_ids")
        self.tables.execute("BEGIN")
        self.tables.executemany("INSERT INTO today VALUES (?, ?, ?)", today)
        self.tables.execute("COMMIT")
        self.tables.executescript(f"CREATE INDEX today_ids ON today (id); {_EDITED}")
        edited = "SELECT name, before, after FROM edited ORDER BY place"
        return Changes(
            edited=[Edited(source=name, before=old, after=new) for name, old, new in self.tables.execute(edited)],
            renamed=[Renamed(id=key, before=old, after=new) for key, old, new, _ in self.tables.execute(_RENAMED)],
            returned=[Named(source=name, id=key) for name, key, _ in self.tables.execute(_RETURNED)],
            deleted=[Named(source=name, id=key) for name, key in self.tables.execute(_DELETED)],
            gone=[key for (key,) in self.tables.execute(_GONE)],
        )

    def new(self) -> Iterator[tuple[int, str, Split | None]]:
        """The place and id of every document of today that is not known, in order, after `compare`; and the split of
        the text that it was edited from, if any: of several the first counts."""
        return self.tables.execute(_NEW)

    def known(self, prefix: str = "") -> int:
        """The number of known names that begin so."""
        return self._one("SELECT count(*) FROM names WHERE substr(name, 1, ?) = ?", len(prefix), prefix)

    def found(self, prefix: str = "") -> int:
        """The number of today's names that begin so."""
        return self._one("SELECT count(*) FROM today WHERE substr(name, 1, ?) = ?", len(prefix), prefix)

    def close(self) -> None:
        self.tables.close()

    def _one(self, query: str, *values: str | int) -> int:
        row = self.tables.execute(query, values).fetchone()
        return int(row[0]) if row else 0
