"""The shape of a statement."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shape import shape, shares


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("self.total = count", "_ . _ = _"),
        ("node.next = None", "_ . _ = _"),
        ("return len(items) + 1", "return _ ( _ ) + _"),
        ("if not x in seen:\n    seen.add('x')", "if not _ in _ : _ . _ ( _ )"),
        ("self.names = []", "_ . _ = [ ]"),
        ("", ""),
    ],
)
def test_names_and_values_are_blanked(statement: str, expected: str) -> None:
    assert shape(statement) == expected


def test_what_is_not_python_has_the_shape_of_its_beginning() -> None:
    assert shape("call(x, 'unfinished").startswith("_ ( _ ,")
    assert shape("rows = [1,") == "_ = [ _ ,"


def test_shares_are_parts_of_the_whole() -> None:
    assert shares(["a = b", "c = d", "return e", "x.y"]) == {"_ = _": 0.5, "return _": 0.25, "_ . _": 0.25}


@given(st.text())
def test_any_text_has_a_shape(text: str) -> None:
    assert isinstance(shape(text), str)
