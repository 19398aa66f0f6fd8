"""Detect how a source has changed since the known corpora were made, from its documents' names and ids.

A document is identified by its text (its id); a name is where the text was found. If a name is in several corpora the
newest counts, and each increment's `changes.json` also lists what was renamed and deleted. So the corpora in order
describe the source at the time of the last one.

    new        unknown text under an unknown name
    edited     a name whose previous text is no longer in the source, and its current text
    renamed    known text that moved to another name
    returned   known text that had been deleted
    deleted    a name that no longer exists, or that a renamed document took over, and its text
    gone       every known text that is not in the source now

New text under the name of a document that was renamed is not an edit. Rotating files, or inserting a line before all
others, therefore creates new documents. Text that was both renamed and edited cannot be told from new text.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import BaseModel

from tasks.data.documents import SPLITS, Split, read_names
from tasks.job import StageError

CHANGES = "changes.json"


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

    new: list[Named] = []
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


@dataclass
class Known:
    """Every document of some corpora, and the source's state at the last of them. About 500 bytes per document."""

    splits: dict[str, Split] = field(default_factory=dict)  # by id
    names: dict[str, str] = field(default_factory=dict)  # name -> id, one to one
    lost: dict[str, str] = field(default_factory=dict)  # name -> id, of deleted names
    _name_of: dict[str, str] = field(default_factory=dict)  # id -> name

    def add(self, corpus: Path) -> None:
        """Add the next corpus."""
        for split in SPLITS:
            for document_id, name in read_names(corpus, split):
                self.add_document(name, document_id, split)
        if (corpus / CHANGES).exists():
            self.apply(Changes.read(corpus))

    def add_document(self, name: str, document_id: str, split: Split) -> None:
        """Add a document of a corpus."""
        self.splits.setdefault(document_id, split)
        self._put(name, document_id)

    def apply(self, changes: Changes) -> None:
        """Apply the other changes of the source that were found with a corpus."""
        for item in changes.deleted:
            self.lost[item.source] = item.id
            if self.names.get(item.source) == item.id:
                del self.names[item.source], self._name_of[item.id]
        moves = [(item.after, item.id) for item in changes.renamed]
        moves += [(item.source, item.after) for item in changes.edited]
        moves += [(item.source, item.id) for item in changes.returned]
        for name, document_id in moves:
            if document_id in self.splits:
                self._put(name, document_id)

    def _put(self, name: str, document_id: str) -> None:
        """Give a document a name, and remove its other name and the name's other document."""
        if (before := self.names.pop(name, None)) is not None:
            del self._name_of[before]
        if (elsewhere := self._name_of.get(document_id)) is not None:
            del self.names[elsewhere]
        self.names[name], self._name_of[document_id] = document_id, name
        self.lost.pop(name, None)

    def compare(self, unmoved: set[str], found: Mapping[str, str]) -> Changes:
        """The changes from the known state to the source's current state, which is `unmoved`, the ids found under their
        known names, and `found`, name -> id of all other documents, in the source's order."""
        present = unmoved | (self.splits.keys() & set(found.values()))
        absent = {name: key for name, key in (self.lost | self.names).items() if key not in present}
        changes = Changes(
            edited=[
                Edited(source=name, before=absent[name], after=key)
                for name, key in found.items()
                if name in absent and key not in unmoved and key not in self._name_of
            ],
            gone=[key for key in self.splits if key not in present],
        )
        reported = unmoved | {item.after for item in changes.edited}
        for name, key in found.items():
            if key in reported:
                continue  # a copy
            reported.add(key)
            if (before := self._name_of.get(key)) is not None:
                changes.renamed.append(Renamed(id=key, before=before, after=name))
            elif key in self.splits:
                changes.returned.append(Named(source=name, id=key))
            else:
                changes.new.append(Named(source=name, id=key))
        edited = {item.source for item in changes.edited}
        changes.deleted.extend(
            Named(source=name, id=key) for name, key in absent.items() if name in self.names and name not in edited
        )
        return changes
