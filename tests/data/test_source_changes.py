"""Changes of a source, detected from names and ids. A source is written as {name: document}."""

from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from baton.tasks.data.compare import PLACED, Known
from baton.tasks.data.documents import NAMES, Split
from baton.tasks.data.source_changes import Changes, Edited, Named, Renamed

Day = dict[str, str]


@dataclass
class DayReport:
    """The reported changes of a day."""

    changes: Changes
    new: set[str]
    gone: list[str]


def placed(rows: Iterable[tuple[int, tuple[str, str]]]) -> pa.RecordBatch:
    """Return documents (name, id) with their places."""
    return pa.RecordBatch.from_pylist(
        [{"place": place, "source": name, "id": each} for place, (name, each) in rows], PLACED
    )


def look(known: Known, today: Day) -> DayReport:
    changes = known.compare([placed(enumerate(today.items()))])
    edits = {item.after for item in changes.edited}
    return DayReport(changes, {each for _, each, _ in known.new()} - edits, gone(known))


def after(*days: Day) -> Known:
    """Return the known facts after an increment on each of these days."""
    known = Known()
    for today in days:
        changes, before = look(known, today).changes, ids(known)
        new = [(place, (name, each)) for place, (name, each) in enumerate(today.items()) if each not in before]
        known.add_documents([placed(new).select(NAMES.names)], "train")
        known.apply(changes)
    return known


def ids(known: Known) -> set[str]:
    return {each for (each,) in known.tables.execute("SELECT id FROM documents").fetchall()}


def gone(known: Known) -> list[str]:
    """Return the known documents that are missing from the source, after `compare`."""
    return [
        each for (each,) in known.tables.execute("SELECT id FROM seen WHERE place IS NULL ORDER BY first").fetchall()
    ]


def names(known: Known) -> Day:
    return dict(known.tables.execute("SELECT name, id FROM names").fetchall())


def named(*pairs: str) -> list[Named]:
    return [Named(source=name, id=each) for name, each in map(str.split, pairs)]


def edited(*triples: str) -> list[Edited]:
    return [Edited(source=name, before=old, after=new) for name, old, new in map(str.split, triples)]


def renamed(*triples: str) -> list[Renamed]:
    return [Renamed(id=each, before=old, after=new) for each, old, new in map(str.split, triples)]


@pytest.mark.parametrize(
    ("was", "today", "changes", "new", "absent"),
    [
        pytest.param({"a": "X"}, {"a": "X"}, Changes(), "", "", id="nothing"),
        pytest.param({"a": "X"}, {"a": "X", "b": "Y"}, Changes(), "Y", "", id="new"),
        pytest.param({"a": "X"}, {"a": "Y"}, Changes(edited=edited("a X Y")), "", "X", id="edited"),
        pytest.param({"a": "X"}, {"b": "X"}, Changes(renamed=renamed("X a b")), "", "", id="renamed"),
        pytest.param({"a": "X", "b": "Y"}, {"b": "Y"}, Changes(deleted=named("a X")), "", "X", id="deleted"),
        pytest.param({"a": "X"}, {"a": "X", "b": "X"}, Changes(), "", "", id="copied"),
        pytest.param(
            {"a": "X", "b": "Y"}, {"a": "Y", "b": "X"}, Changes(renamed=renamed("Y b a", "X a b")), "", "", id="swapped"
        ),
        pytest.param(
            {"a": "X", "b": "Y"},
            {"a": "Y"},
            Changes(renamed=renamed("Y b a"), deleted=named("a X")),
            "",
            "X",
            id="moved over another",
        ),
        pytest.param(
            {"a": "X"}, {"a.old": "X", "a": "Y"}, Changes(renamed=renamed("X a a.old")), "Y", "", id="rotated"
        ),
        pytest.param(
            {"1": "X", "2": "Y"},
            {"1": "N", "2": "X", "3": "Y"},
            Changes(renamed=renamed("X 1 2", "Y 2 3")),
            "N",
            "",
            id="a line before all others",
        ),
        pytest.param(
            {"b": "X"}, {"a": "Y", "b": "Y"}, Changes(edited=edited("b X Y")), "", "X", id="edited and copied"
        ),
        pytest.param({"a": "X"}, {"b": "Y"}, Changes(deleted=named("a X")), "Y", "X", id="both"),
    ],
)
def test_what_happened_in_a_day(was: Day, today: Day, changes: Changes, new: str, absent: str) -> None:
    assert look(after(was), today) == DayReport(changes, set(new), [*absent])


def test_a_document_that_comes_back_is_neither_new_nor_gone() -> None:
    known = after({"a": "X", "b": "Y"}, {"b": "Y", "c": "Z"})
    assert look(known, {"b": "Y", "c": "Z", "a": "X"}) == DayReport(Changes(returned=named("a X")), set(), [])


def test_an_edit_that_is_taken_back_is_an_edit_without_a_new_document() -> None:
    known = after({"a": "X"}, {"a": "Y"})
    assert look(known, {"a": "X"}) == DayReport(Changes(edited=edited("a Y X")), set(), ["Y"])


def test_a_deleted_name_that_comes_back_with_another_text_was_edited() -> None:
    known = after({"a": "X", "b": "Y"}, {"b": "Y", "c": "Z"})
    assert look(known, {"a": "X2", "b": "Y", "c": "Z"}).changes.edited == edited("a X X2")


def test_the_newest_name_counts() -> None:
    """Y took over the name a from X, so the edit of a is an edit of Y."""
    known = after({"a": "X", "b": "Y"}, {"a": "Y", "c": "Z"})
    assert look(known, {"a": "Y2", "c": "Z"}) == DayReport(Changes(edited=edited("a Y Y2")), set(), ["X", "Y"])


def test_what_was_deleted_is_reported_once_and_stays_gone() -> None:
    known = after({"a": "X", "b": "Y"}, {"b": "Y", "c": "Z"})
    assert look(known, {"b": "Y", "c": "Z"}) == DayReport(Changes(), set(), ["X"])


days = st.lists(st.dictionaries(st.sampled_from("abcd"), st.sampled_from("UVWXYZ"), min_size=1), min_size=1, max_size=6)


@pytest.mark.long
@given(days)
@example([{"a": "X", "b": "Y"}, {"a": "Y", "b": "X"}, {"b": "Y", "c": "Y"}])
@settings(max_examples=100, deadline=None)
def test_whatever_happens_the_increments_tell_what_the_source_looks_like(history: list[Day]) -> None:
    known, today = after(*history), history[-1]
    assert {name: today[name] for name in names(known)} == names(known)
    assert set(names(known).values()) == set(today.values())
    again = look(known, today)
    assert (again.changes, again.new) == (Changes(), set())
    assert set(again.gone) == {each for day in history for each in day.values()} - set(today.values())


@pytest.mark.long
@given(days)
@settings(max_examples=100, deadline=None)
def test_every_change_is_reported_once(history: list[Day]) -> None:
    *before, today = history
    known = after(*before)
    report = look(known, today)
    changes, present, new = report.changes, set(today.values()), set(today.values()) - ids(known)
    reported = [*report.new, *(each.id for each in changes.returned), *(each.id for each in changes.renamed)]
    assert len(reported) == len(set(reported))
    assert not set(reported) & {each.after for each in changes.edited}
    assert new == report.new | ({each.after for each in changes.edited} & new)
    assert not present & {each.before for each in changes.edited}
    assert not present & {each.id for each in changes.deleted}


class Model:
    """A model of `Known` with dictionaries."""

    def __init__(self) -> None:
        self.documents: dict[str, Split] = {}
        self.names: Day = {}
        self.lost: Day = {}
        self.gone: list[str] = []  # set by `look`

    def add(self, day: Day, split: Split) -> None:
        for name, each in day.items():
            self.documents.setdefault(each, split)
            self.put(name, each)

    def put(self, name: str, each: str) -> None:
        self.names = {known: its for known, its in self.names.items() if known != name and its != each} | {name: each}
        self.lost.pop(name, None)

    def apply(self, changes: Changes) -> None:
        for item in changes.deleted:
            self.lost[item.source] = item.id
            if self.names.get(item.source) == item.id:
                del self.names[item.source]
        moves = [(item.after, item.id) for item in changes.renamed]
        moves += [(item.source, item.after) for item in changes.edited]
        moves += [(item.source, item.id) for item in changes.returned]
        for name, each in moves:
            if each in self.documents:
                self.put(name, each)

    def look(self, today: Day) -> tuple[Changes, list[tuple[str, Split | None]]]:
        here, named = set(today.values()), {each: name for name, each in self.names.items()}
        absent = {name: each for name, each in (self.lost | self.names).items() if each not in here}
        edits = [(name, absent[name], each) for name, each in today.items() if name in absent and each not in named]
        before = {new: old for _, old, new in reversed(edits)}
        firsts = {each: name for name, each in reversed(today.items())}
        firsts = {each: firsts[each] for each in today.values()}  # ordered by place
        at_home = {each for name, each in today.items() if self.names.get(name) == each}
        changes = Changes(
            edited=[Edited(source=name, before=old, after=new) for name, old, new in edits],
            renamed=[
                Renamed(id=each, before=named[each], after=name)
                for each, name in firsts.items()
                if each in named and each not in at_home
            ],
            returned=[
                Named(source=name, id=each)
                for each, name in firsts.items()
                if each in self.documents and each not in named and each not in before
            ],
            deleted=[
                Named(source=name, id=each)
                for name, each in sorted(self.names.items())
                if each not in here and name not in {name for name, _, _ in edits}
            ],
        )
        unknown = [each for each in today.values() if each not in self.documents]
        self.gone = [each for each in self.documents if each not in here]
        return changes, [(each, self.documents.get(before.get(each, ""))) for each in unknown]


some = st.dictionaries(st.sampled_from("abcd"), st.sampled_from("UVWXYZ"), min_size=1)


@pytest.mark.long
@given(
    st.lists(st.tuples(some, some, st.booleans()), max_size=4),
    st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from("UVWXYZ")), max_size=4),
    some,
)
@settings(max_examples=100, deadline=None)
def test_sql_finds_what_dictionaries_do(
    history: list[tuple[Day, Day, bool]], more: list[tuple[str, str]], today: Day
) -> None:
    """The corpora may also have a document twice, lack a new one (a near duplicate), or list one as deleted that did
    not exist."""
    known, model = Known(), Model()
    for day, added, as_told in history:
        report, expected = known.compare([placed(enumerate(day.items()))]), model.look(day)
        assert (report, [row[1:] for row in known.new()]) == expected
        assert gone(known) == model.gone
        of_splits: dict[Split, Day] = {"train": day if as_told else added, "held_out": added}
        for split, documents in of_splits.items():
            known.add_documents([placed(enumerate(documents.items())).select(NAMES.names)], split)
            model.add(documents, split)
        report.deleted += [Named(source=name, id=each) for name, each in more]
        known.apply(report)
        model.apply(report)
    assert (known.compare([placed(enumerate(today.items()))]), [row[1:] for row in known.new()]) == model.look(today)


kinds = st.sampled_from(["added", "moved", "deleted", "forgotten"])
statements = st.lists(st.tuples(kinds, st.sampled_from("ab"), st.sampled_from("UVW")), min_size=3, max_size=10)


def say(known: Known, kind: str, name: str, each: str) -> None:
    if kind == "added":
        known.add_documents([placed([(0, (name, each))]).select(NAMES.names)], "train" if each < "V" else "held_out")
    elif kind == "moved":
        known.apply(Changes(renamed=[Renamed(id=each, before="", after=name)]))
    elif kind == "deleted":
        known.apply(Changes(deleted=[Named(source=name, id=each)]))


@given(statements, st.dictionaries(st.sampled_from("ab"), st.sampled_from("UVW")))
@example([("added", "a", "U"), ("added", "b", "V"), ("moved", "a", "V"), ("moved", "b", "V")], {})
@example([("added", "a", "U"), ("moved", "b", "U"), ("added", "b", "V")], {"a": "V"})
@example([("added", "a", "U"), ("deleted", "a", "U"), ("deleted", "a", "V")], {})
@example([("added", "a", "U"), ("moved", "b", "U"), ("forgotten", "", ""), ("moved", "a", "U")], {"b": "V"})
@settings(max_examples=50, deadline=None)
def test_what_is_forgotten_has_no_influence(history: list[tuple[str, str, str]], today: Day) -> None:
    """The results are the same with and without the forgotten statements, whatever precedes and follows them."""
    whole, shorter = Known(), Known()
    for kind, name, each in [*history, ("forgotten", "", "")]:
        say(whole, kind, name, each)
        say(shorter, kind, name, each)
        if kind == "forgotten":
            shorter.forget()
    rows = [placed(enumerate(today.items()))]
    assert whole.compare(rows) == shorter.compare(rows)
    assert [*whole.new()] == [*shorter.new()]
    assert (names(whole), ids(whole)) == (names(shorter), ids(shorter))
