"""Detect how a source has changed since the known corpora were made, from its documents' names and ids.

A document is identified by its text (its id); a name is where the text was found. If a name is in several corpora the
newest counts, and each increment's `changes.json` also lists what was renamed and deleted. So the corpora in order
describe the source at the time of the last one.

    new        unknown text under an unknown name: the increment's documents that are not edits
    edited     a name whose previous text is no longer in the source, and its current text
    renamed    known text that moved to another name
    returned   known text that had been deleted
    deleted    a name that no longer exists, or that a renamed document took over, and its text

New text under the name of a document that was renamed is not an edit. Rotating files, or inserting a line before all
others, therefore creates new documents. Text that was both renamed and edited cannot be distinguished from new text.
"""

from pathlib import Path

from pydantic import BaseModel

CHANGES = "changes.json"
GONE = "gone.arrow"  # gone.py
GONE_COUNTS = "gone.json"


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

    def write(self, corpus: Path) -> None:
        (corpus / CHANGES).write_text(self.model_dump_json(indent=1))

    @classmethod
    def read(cls, corpus: Path) -> "Changes":
        """The changes of an increment."""
        return cls.model_validate_json((corpus / CHANGES).read_bytes())
