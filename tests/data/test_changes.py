"""Changes of a source, detected from names and ids. A source is {name: document}."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tasks.data.changes import Changes, Edited, Known, Named, Renamed

Day = dict[str, str]


def look(known: Known, today: Day) -> Changes:
    unmoved = {each for name, each in today.items() if known.names.get(name) == each}
    return known.compare(unmoved, {name: each for name, each in today.items() if known.names.get(name) != each})


def after(*days: Day) -> Known:
    """What is known after an increment on each of these days."""
    known = Known()
    for today in days:
        changes = look(known, today)
        for name, each in today.items():
            if each not in known.splits:
                known.add_document(name, each, "train")
        known.apply(changes)
    return known


def named(*pairs: str) -> list[Named]:
    return [Named(source=name, id=each) for name, each in map(str.split, pairs)]


def edited(*triples: str) -> list[Edited]:
    return [Edited(source=name, before=old, after=new) for name, old, new in map(str.split, triples)]


def renamed(*triples: str) -> list[Renamed]:
    return [Renamed(id=each, before=old, after=new) for each, old, new in map(str.split, triples)]


@pytest.mark.parametrize(
    ("was", "today", "changes"),
    [
        pytest.param({"a": "X"}, {"a": "X"}, Changes(), id="nothing"),
        pytest.param({"a": "X"}, {"a": "X", "b": "Y"}, Changes(new=named("b Y")), id="new"),
        pytest.param({"a": "X"}, {"a": "Y"}, Changes(edited=edited("a X Y"), gone=["X"]), id="edited"),
        pytest.param({"a": "X"}, {"b": "X"}, Changes(renamed=renamed("X a b")), id="renamed"),
        pytest.param({"a": "X", "b": "Y"}, {"b": "Y"}, Changes(deleted=named("a X"), gone=["X"]), id="deleted"),
        pytest.param({"a": "X"}, {"a": "X", "b": "X"}, Changes(), id="copied"),
        pytest.param(
            {"a": "X", "b": "Y"}, {"a": "Y", "b": "X"}, Changes(renamed=renamed("Y b a", "X a b")), id="swapped"
        ),
        pytest.param(
            {"a": "X", "b": "Y"},
            {"a": "Y"},
            Changes(renamed=renamed("Y b a"), deleted=named("a X"), gone=["X"]),
            id="moved over another",
        ),
        pytest.param(
            {"a": "X"}, {"a.old": "X", "a": "Y"}, Changes(renamed=renamed("X a a.old"), new=named("a Y")), id="rotated"
        ),
        pytest.param(
            {"1": "X", "2": "Y"},
            {"1": "N", "2": "X", "3": "Y"},
            Changes(new=named("1 N"), renamed=renamed("X 1 2", "Y 2 3")),
            id="a line before all others",
        ),
        pytest.param(
            {"b": "X"}, {"a": "Y", "b": "Y"}, Changes(edited=edited("b X Y"), gone=["X"]), id="edited and copied"
        ),
        pytest.param({"a": "X"}, {"b": "Y"}, Changes(new=named("b Y"), deleted=named("a X"), gone=["X"]), id="both"),
    ],
)
def test_what_happened_in_a_day(was: Day, today: Day, changes: Changes) -> None:
    assert look(after(was), today) == changes


def test_a_document_that_comes_back_is_neither_new_nor_gone() -> None:
    known = after({"a": "X", "b": "Y"}, {"b": "Y", "c": "Z"})
    assert look(known, {"b": "Y", "c": "Z", "a": "X"}) == Changes(returned=named("a X"))


def test_an_edit_that_is_taken_back_is_an_edit_without_a_new_document() -> None:
    known = after({"a": "X"}, {"a": "Y"})
    assert look(known, {"a": "X"}) == Changes(edited=edited("a Y X"), gone=["Y"])


def test_a_deleted_name_that_comes_back_with_another_text_was_edited() -> None:
    known = after({"a": "X", "b": "Y"}, {"b": "Y", "c": "Z"})
    assert look(known, {"a": "X2", "b": "Y", "c": "Z"}).edited == edited("a X X2")


def test_the_newest_name_counts() -> None:
    """Y took over the name a from X, so the edit of a is an edit of Y."""
    known = after({"a": "X", "b": "Y"}, {"a": "Y", "c": "Z"})
    assert look(known, {"a": "Y2", "c": "Z"}) == Changes(edited=edited("a Y Y2"), gone=["X", "Y"])


def test_what_was_deleted_is_told_once_and_stays_gone() -> None:
    known = after({"a": "X", "b": "Y"}, {"b": "Y", "c": "Z"})
    assert look(known, {"b": "Y", "c": "Z"}) == Changes(gone=["X"])


days = st.lists(st.dictionaries(st.sampled_from("abcd"), st.sampled_from("UVWXYZ"), min_size=1), min_size=1, max_size=6)


@given(days)
@example([{"a": "X", "b": "Y"}, {"a": "Y", "b": "X"}, {"b": "Y", "c": "Y"}])
@settings(max_examples=200, deadline=None)
def test_whatever_happens_the_increments_tell_what_the_source_looks_like(history: list[Day]) -> None:
    known, today = after(*history), history[-1]
    assert {name: today[name] for name in known.names} == known.names
    assert set(known.names.values()) == set(today.values())
    again = look(known, today)
    assert again == Changes(gone=again.gone)
    assert set(again.gone) == {each for day in history for each in day.values()} - set(today.values())


@given(days)
@settings(max_examples=200, deadline=None)
def test_every_change_is_told_once(history: list[Day]) -> None:
    *before, today = history
    known = after(*before)
    changes = look(known, today)
    present, new = set(today.values()), set(today.values()) - known.splits.keys()
    reported = [each.id for each in (*changes.new, *changes.returned)] + [each.id for each in changes.renamed]
    assert len(reported) == len(set(reported))
    assert not set(reported) & {each.after for each in changes.edited}
    assert new == {each.id for each in changes.new} | ({each.after for each in changes.edited} & new)
    assert not present & {each.before for each in changes.edited}
    assert not present & {each.id for each in changes.deleted}
