"""Changes of a source, detected from names and ids. A source is {name: document}."""

from dataclasses import dataclass

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tasks.data.changes import Changes, Edited, Known, Named, Renamed

Day = dict[str, str]


@dataclass
class Told:
    """What is told of a day."""

    changes: Changes
    new: set[str]


def look(known: Known, today: Day) -> Told:
    changes = known.compare((place, name, each) for place, (name, each) in enumerate(today.items()))
    edits = {item.after for item in changes.edited}
    return Told(changes, {each for _, each, _ in known.new()} - edits)


def after(*days: Day) -> Known:
    """What is known after an increment on each of these days."""
    known = Known()
    for today in days:
        changes, before = look(known, today).changes, ids(known)
        for name, each in today.items():
            if each not in before:
                known.add_document(name, each, "train")
        known.apply(changes)
    return known


def ids(known: Known) -> set[str]:
    return {each for (each,) in known.tables.execute("SELECT id FROM documents")}


def names(known: Known) -> Day:
    return dict(known.tables.execute("SELECT name, id FROM names"))


def named(*pairs: str) -> list[Named]:
    return [Named(source=name, id=each) for name, each in map(str.split, pairs)]


def edited(*triples: str) -> list[Edited]:
    return [Edited(source=name, before=old, after=new) for name, old, new in map(str.split, triples)]


def renamed(*triples: str) -> list[Renamed]:
    return [Renamed(id=each, before=old, after=new) for each, old, new in map(str.split, triples)]


@pytest.mark.parametrize(
    ("was", "today", "changes", "new"),
    [
        pytest.param({"a": "X"}, {"a": "X"}, Changes(), "", id="nothing"),
        pytest.param({"a": "X"}, {"a": "X", "b": "Y"}, Changes(), "Y", id="new"),
        pytest.param({"a": "X"}, {"a": "Y"}, Changes(edited=edited("a X Y"), gone=["X"]), "", id="edited"),
        pytest.param({"a": "X"}, {"b": "X"}, Changes(renamed=renamed("X a b")), "", id="renamed"),
        pytest.param({"a": "X", "b": "Y"}, {"b": "Y"}, Changes(deleted=named("a X"), gone=["X"]), "", id="deleted"),
        pytest.param({"a": "X"}, {"a": "X", "b": "X"}, Changes(), "", id="copied"),
        pytest.param(
            {"a": "X", "b": "Y"}, {"a": "Y", "b": "X"}, Changes(renamed=renamed("Y b a", "X a b")), "", id="swapped"
        ),
        pytest.param(
            {"a": "X", "b": "Y"},
            {"a": "Y"},
            Changes(renamed=renamed("Y b a"), deleted=named("a X"), gone=["X"]),
            "",
            id="moved over another",
        ),
        pytest.param({"a": "X"}, {"a.old": "X", "a": "Y"}, Changes(renamed=renamed("X a a.old")), "Y", id="rotated"),
        pytest.param(
            {"1": "X", "2": "Y"},
            {"1": "N", "2": "X", "3": "Y"},
            Changes(renamed=renamed("X 1 2", "Y 2 3")),
            "N",
            id="a line before all others",
        ),
        pytest.param(
            {"b": "X"}, {"a": "Y", "b": "Y"}, Changes(edited=edited("b X Y"), gone=["X"]), "", id="edited and copied"
        ),
        pytest.param({"a": "X"}, {"b": "Y"}, Changes(deleted=named("a X"), gone=["X"]), "Y", id="both"),
    ],
)
def test_what_happened_in_a_day(was: Day, today: Day, changes: Changes, new: str) -> None:
    assert look(after(was), today) == Told(changes, set(new))


def test_a_document_that_comes_back_is_neither_new_nor_gone() -> None:
    known = after({"a": "X", "b": "Y"}, {"b": "Y", "c": "Z"})
    assert look(known, {"b": "Y", "c": "Z", "a": "X"}).changes == Changes(returned=named("a X"))


def test_an_edit_that_is_taken_back_is_an_edit_without_a_new_document() -> None:
    known = after({"a": "X"}, {"a": "Y"})
    assert look(known, {"a": "X"}).changes == Changes(edited=edited("a Y X"), gone=["Y"])


def test_a_deleted_name_that_comes_back_with_another_text_was_edited() -> None:
    known = after({"a": "X", "b": "Y"}, {"b": "Y", "c": "Z"})
    assert look(known, {"a": "X2", "b": "Y", "c": "Z"}).changes.edited == edited("a X X2")


def test_the_newest_name_counts() -> None:
    """Y took over the name a from X, so the edit of a is an edit of Y."""
    known = after({"a": "X", "b": "Y"}, {"a": "Y", "c": "Z"})
    assert look(known, {"a": "Y2", "c": "Z"}).changes == Changes(edited=edited("a Y Y2"), gone=["X", "Y"])


def test_what_was_deleted_is_told_once_and_stays_gone() -> None:
    known = after({"a": "X", "b": "Y"}, {"b": "Y", "c": "Z"})
    assert look(known, {"b": "Y", "c": "Z"}).changes == Changes(gone=["X"])


days = st.lists(st.dictionaries(st.sampled_from("abcd"), st.sampled_from("UVWXYZ"), min_size=1), min_size=1, max_size=6)


@given(days)
@example([{"a": "X", "b": "Y"}, {"a": "Y", "b": "X"}, {"b": "Y", "c": "Y"}])
@settings(max_examples=100, deadline=None)
def test_whatever_happens_the_increments_tell_what_the_source_looks_like(history: list[Day]) -> None:
    known, today = after(*history), history[-1]
    assert {name: today[name] for name in names(known)} == names(known)
    assert set(names(known).values()) == set(today.values())
    again = look(known, today)
    assert again == Told(Changes(gone=again.changes.gone), set())
    assert set(again.changes.gone) == {each for day in history for each in day.values()} - set(today.values())


@given(days)
@settings(max_examples=100, deadline=None)
def test_every_change_is_told_once(history: list[Day]) -> None:
    *before, today = history
    known = after(*before)
    told = look(known, today)
    changes, present, new = told.changes, set(today.values()), set(today.values()) - ids(known)
    reported = [*told.new, *(each.id for each in changes.returned), *(each.id for each in changes.renamed)]
    assert len(reported) == len(set(reported))
    assert not set(reported) & {each.after for each in changes.edited}
    assert new == told.new | ({each.after for each in changes.edited} & new)
    assert not present & {each.before for each in changes.edited}
    assert not present & {each.id for each in changes.deleted}
