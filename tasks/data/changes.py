"""What became of a source since it was last looked at, told by its documents' names and ids.

A document *is* its text (its id); a name is where it stood. Of a name that stands in several corpora the
newest counts, and each increment's `changes.json` says what was renamed and deleted beside it, so the
corpora in their order tell what the source looked like when the last of them was made.

    new        text never seen before, under a name that tells nothing of it
    edited     a name whose earlier text is nowhere in the source any more, and the text that it has now
    renamed    known text that left its name and stands under another
    returned   known text that was gone
    deleted    a name that is gone, or was taken over by a renamed document, and its text with it
    gone       every known text that is not in the source, whenever it went

Not an edit: new text under the name of a document that lives on under another one. Who rotates files, or
puts a line before all others, writes new documents. And nobody can tell a text that was both renamed and
edited from a new one.
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
        """Those that an increment came with. Raises StageError when the corpus is not one."""
        if not (corpus / CHANGES).exists():
            raise StageError(f"{corpus}: no {CHANGES}, so it does not say what is gone; give a corpus of `find_new`")
        return cls.model_validate_json((corpus / CHANGES).read_bytes())


@dataclass
class Known:
    """Every document of some corpora, and the source as the last of them left it: some 500 bytes a document."""

    splits: dict[str, Split] = field(default_factory=dict)  # by id
    names: dict[str, str] = field(default_factory=dict)  # name -> id; no two names have the same
    lost: dict[str, str] = field(default_factory=dict)  # name -> id, of names that were deleted
    _name_of: dict[str, str] = field(default_factory=dict)  # id -> name

    def add(self, corpus: Path) -> None:
        """Take in the next corpus."""
        for split in SPLITS:
            for document_id, name in read_names(corpus, split):
                self.learn(name, document_id, split)
        if (corpus / CHANGES).exists():
            self.follow(Changes.read(corpus))

    def learn(self, name: str, document_id: str, split: Split) -> None:
        """A document that is in a corpus."""
        self.splits.setdefault(document_id, split)
        self._put(name, document_id)

    def follow(self, changes: Changes) -> None:
        """What else had happened when a corpus was made."""
        for each in changes.deleted:
            self.lost[each.source] = each.id
            if self.names.get(each.source) == each.id:
                del self.names[each.source], self._name_of[each.id]
        moves = [(each.after, each.id) for each in changes.renamed]
        moves += [(each.source, each.after) for each in changes.edited]
        moves += [(each.source, each.id) for each in changes.returned]
        for name, document_id in moves:
            if document_id in self.splits:
                self._put(name, document_id)

    def _put(self, name: str, document_id: str) -> None:
        """The name has this document now, and the document no other name."""
        if (before := self.names.pop(name, None)) is not None:
            del self._name_of[before]
        if (elsewhere := self._name_of.get(document_id)) is not None:
            del self.names[elsewhere]
        self.names[name], self._name_of[document_id] = document_id, name
        self.lost.pop(name, None)

    def compare(self, unmoved: set[str], found: Mapping[str, str]) -> Changes:
        """What is in the source now: `unmoved`, the ids that stand where they stood, and `found`, name -> id
        of all else in the source's order."""
        present = unmoved | (self.splits.keys() & set(found.values()))
        left = {name: each for name, each in (self.lost | self.names).items() if each not in present}
        changes = Changes(
            edited=[
                Edited(source=name, before=left[name], after=each)
                for name, each in found.items()
                if name in left and each not in unmoved and each not in self._name_of
            ],
            gone=[each for each in self.splits if each not in present],
        )
        told = unmoved | {each.after for each in changes.edited}
        for name, each in found.items():
            if each in told:
                continue  # a copy
            told.add(each)
            if (before := self._name_of.get(each)) is not None:
                changes.renamed.append(Renamed(id=each, before=before, after=name))
            elif each in self.splits:
                changes.returned.append(Named(source=name, id=each))
            else:
                changes.new.append(Named(source=name, id=each))
        edited = {each.source for each in changes.edited}
        changes.deleted.extend(
            Named(source=name, id=each) for name, each in left.items() if name in self.names and name not in edited
        )
        return changes
