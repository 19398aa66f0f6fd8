"""The valid results of a reward, without a subprocess."""

import math
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.tasks.rewards.call import Batch, Log, Reward
from baton.tasks.user_code.load_function import Unusable

TWO = Batch(prompts=["p", "q"], completions=["a", "b"])


def returned(value: Any) -> list[float | None]:
    return Reward("f", lambda completions: value, Path("/nowhere")).score(TWO, Log(), lambda words: None)


@pytest.mark.parametrize(
    "value",
    [
        [1, 0.5],
        (True, Fraction(1, 2)),
        np.array([1.0, 0.5], dtype=np.float16),
        [np.float32(1), np.array(0.5)],
    ],
)
def test_numbers_of_many_kinds_are_numbers(value: Any) -> None:
    assert returned(value) == [1.0, 0.5]


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.binary() | st.complex_numbers(),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=2), inner, max_size=2)),
    max_leaves=4,
)


@given(ANYTHING | st.lists(ANYTHING, min_size=2, max_size=2))
def test_whatever_a_function_returns_is_taken_or_named(value: Any) -> None:
    try:
        rewards = returned(value)
    except Unusable as error:
        assert str(error).startswith("f returned ")
    else:
        assert len(rewards) == 2
        assert all(one is None or math.isfinite(one) for one in rewards)


@pytest.mark.parametrize(
    "value", [[Decimal(1), 0], [1, [2]], [1j, 0], [np.array([1, 2]), 0], {"a": 1, "b": 2}, iter([1, 2])]
)
def test_what_is_no_list_of_numbers_is_refused(value: Any) -> None:
    with pytest.raises(Unusable, match="f returned"):
        returned(value)


def test_a_function_that_python_cannot_describe_is_given_everything() -> None:
    assert Reward("f", dict, Path("/nowhere")).columns == {}
