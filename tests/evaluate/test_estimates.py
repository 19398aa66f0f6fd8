"""Aggregates of rewards."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.infra.evaluated import chance_of_pass
from baton.tasks.evaluate.estimates import distinct, mean_reward, pass_at


@given(st.lists(st.booleans(), min_size=1, max_size=8), st.integers(1, 8))
def test_pass_at_k_is_the_share_of_draws_of_k_that_hold_a_pass(passes: list[bool], k: int) -> None:
    k = min(k, len(passes))
    draws = [any(draw) for draw in combinations(passes, k)]
    assert chance_of_pass(k, [float(each) for each in passes]) == pytest.approx(sum(draws) / len(draws))


def test_a_reward_below_one_and_one_that_does_not_apply_do_not_pass() -> None:
    found = pass_at(1, [[0.99, None], [1.0, 2.0]])
    assert found is not None and found.value == 0.5


def test_prompts_that_a_reward_does_not_apply_to_are_no_failures() -> None:
    rewards: list[list[float | None]] = [[1.0, 1.0], [None, None]]
    passes, mean = pass_at(1, rewards), mean_reward(rewards)
    assert passes is not None and mean is not None
    assert (passes.value, passes.count) == (mean.value, mean.count) == (1.0, 1)


def test_a_reward_that_applies_to_no_completion_has_no_pass_at_k() -> None:
    assert pass_at(1, [[None, None], [None, None]]) is None


def test_the_standard_error_is_over_prompts_not_completions() -> None:
    found = mean_reward([[0.0] * 100, [1.0] * 100])
    assert found is not None
    assert (found.value, found.count) == (0.5, 2)
    assert found.standard_error == pytest.approx(0.5)


def test_completions_that_a_reward_does_not_apply_to_do_not_count() -> None:
    found = mean_reward([[1.0, None], [None, None], [0.0, 1.0]])
    assert found is not None and (found.value, found.count) == (0.75, 2)
    assert mean_reward([[None], [None]]) is None


def test_distinct_does_not_look_at_white_space() -> None:
    assert distinct(["a b", "a  b\n", "c", "c"]).value == 0.5
