"""Rows of Arrow tables have only the fields that were set."""

import json
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from baton.tasks.data.json_values import Unreadable
from baton.tasks.data.readers.arrow_rows import rows_of


def through_arrow(*rows: dict[str, Any]) -> list[dict[str, Any]]:
    return list(rows_of(pa.Table.from_pylist([*rows])))


# Arrow requires one type for each name
leaves = {"number": st.integers(-9, 9), "word": st.text(max_size=3), "list": st.lists(st.none() | st.integers(0, 9))}


def objects(depth: int) -> st.SearchStrategy[dict[str, Any]]:
    inner = {"object": objects(depth - 1), "objects": st.lists(objects(depth - 1), max_size=3)} if depth else {}
    return st.fixed_dictionaries({}, optional=leaves | inner)


@given(st.lists(objects(3), min_size=1, max_size=5))
def test_what_a_row_lacks_is_not_there(rows: list[dict[str, Any]]) -> None:
    """Missing fields are absent at every depth, such as in objects in lists in objects."""
    given = [{"column": row} for row in rows]
    assert through_arrow(*given) == given


def test_null_is_kept_where_arrow_does_not_fill_it_in() -> None:
    rows: list[dict[str, Any]] = [{"list": [1, None], "column": "a"}, {"list": [], "column": None}]
    assert through_arrow(*rows) == rows
    table = pa.table({"map": pa.array([[("a", 1), ("b", None)]], pa.map_(pa.string(), pa.int64()))})
    assert list(rows_of(table)) == [{"map": {"a": 1, "b": None}}]
    row = {"call": {"city": None, "days": [None, {"at": None}]}}
    in_json = pa.array([json.dumps(row["call"])], pa.json_())
    assert list(rows_of(pa.table({"call": in_json}))) == [row]
    nested = pa.StructArray.from_arrays([in_json], names=["arguments"])
    assert list(rows_of(pa.table({"calls": pa.ListArray.from_arrays([0, 1], nested)}))) == [
        {"calls": [{"arguments": row["call"]}]}
    ]


def test_a_value_that_cannot_be_read_is_alone_in_that() -> None:
    texts = pa.array([b"fine", b"caf\xe9", None]).view(pa.string())
    years = pa.array([0, 2**62, None], pa.timestamp("s"))
    first, second, third = rows_of(pa.table({"text": texts, "at": years}))
    assert first["text"] == "fine" and third == {"text": None, "at": None}
    assert isinstance(second["text"], Unreadable) and isinstance(second["at"], Unreadable)
