"""The bounds hold as often as documented, and depend only on the figures."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from baton.infra.chance import items_needed
from baton.tasks.promote.bootstrap import Floats, fewer, more

Z = {0.95: 1.6448536, 0.9: 1.2815516}  # quantiles of the normal distribution
FIGURES = st.lists(st.tuples(st.floats(0.1, 1e4), st.floats(0.1, 1e4)), min_size=8, max_size=60)


def columns(figures: list[tuple[float, float]]) -> tuple[Floats, Floats]:
    candidate, champion = np.array(figures).T
    return candidate, champion


@pytest.mark.parametrize("confidence", [0.9, 0.95])
def test_of_many_items_the_bounds_are_those_of_the_normal_distribution(confidence: float) -> None:
    generator = np.random.default_rng(3)
    candidate, champion = generator.normal(0.6, 1.0, 3_000), generator.normal(0.5, 1.0, 3_000)
    apart = candidate - champion
    wide = Z[confidence] * apart.std() / math.sqrt(len(apart))
    found = more(candidate, champion, confidence, 4_000, 0)
    assert found.value == pytest.approx(apart.mean())
    assert (found.low, found.high) == pytest.approx((apart.mean() - wide, apart.mean() + wide), abs=0.07 * wide)


def test_of_a_ratio_they_are_those_of_the_delta_method() -> None:
    generator = np.random.default_rng(5)
    champion = generator.lognormal(8, 1, 3_000)  # the sizes of documents differ a lot
    candidate = champion * generator.normal(0.97, 0.05, 3_000)
    ratio = candidate.sum() / champion.sum()
    wide = Z[0.95] * np.sqrt(np.sum((candidate - ratio * champion) ** 2)) / champion.sum()
    found = fewer(candidate, champion, 0.95, 4_000, 0)
    assert found.value == pytest.approx(1 - ratio)
    assert (found.low, found.high) == pytest.approx((1 - ratio - wide, 1 - ratio + wide), abs=0.1 * wide)


@pytest.mark.parametrize(("items", "least", "most"), [(20, 0.89, 0.97), (200, 0.92, 0.98)])
def test_a_bound_of_95_per_cent_holds_in_about_95_of_100_worlds(items: int, least: float, most: float) -> None:
    generator = np.random.default_rng(11)
    low = high = 0
    for world in range(600):
        champion = generator.lognormal(8, 0.7, items)
        candidate = champion * generator.normal(0.98, 0.05, items)
        found = fewer(candidate, champion, 0.95, 400, world)
        assert found.low is not None and found.high is not None
        low, high = low + (found.low <= 0.02), high + (found.high >= 0.02)
    assert least < low / 600 < most and least < high / 600 < most


def test_a_rate_s_bounds_hold_as_often_on_prompts_that_pass_or_fail() -> None:
    generator = np.random.default_rng(13)
    held = 0
    for world in range(600):
        champion = generator.random(150) < 0.4
        candidate = np.where(generator.random(150) < 0.7, champion, generator.random(150) < 0.55)
        found = more(candidate.astype(float), champion.astype(float), 0.95, 400, world)
        assert found.low is not None
        held += found.low <= 0.3 * 0.15
    assert 0.92 < held / 600 < 0.98


@settings(max_examples=40, deadline=None)
@given(FIGURES, st.integers(0, 9))
def test_the_same_figures_give_the_same_bounds_and_value_lies_where_it_must(
    figures: list[tuple[float, float]], seed: int
) -> None:
    candidate, champion = columns(figures)
    found = fewer(candidate, champion, 0.95, 200, seed)
    assert found == fewer(candidate, champion, 0.95, 200, seed)
    assert found.low is not None and found.high is not None and found.low <= found.high < 1


@settings(max_examples=40, deadline=None)
@given(FIGURES, st.floats(0.01, 100))
def test_the_unit_of_the_figures_does_not_matter(figures: list[tuple[float, float]], unit: float) -> None:
    candidate, champion = columns(figures)
    ours, theirs = (fewer(scale * candidate, scale * champion, 0.95, 200, 0) for scale in (1.0, unit))
    assert (ours.value, ours.low, ours.high) == pytest.approx((theirs.value, theirs.low, theirs.high), abs=1e-9)


@settings(max_examples=40, deadline=None)
@given(FIGURES)
def test_the_other_way_round_the_bounds_change_places(figures: list[tuple[float, float]]) -> None:
    candidate, champion = columns(figures)
    there, back = more(candidate, champion, 0.95, 200, 0), more(champion, candidate, 0.95, 200, 0)
    assert there.low is not None and back.high is not None
    assert (there.value, there.low) == pytest.approx((-back.value, -back.high))


@settings(max_examples=40, deadline=None)
@given(FIGURES)
def test_a_model_is_neither_better_nor_worse_than_itself(figures: list[tuple[float, float]]) -> None:
    candidate, _ = columns(figures)
    for found in (fewer(candidate, candidate, 0.95, 200, 0), more(candidate, candidate, 0.95, 200, 0)):
        assert (found.value, found.low, found.high) == (0, 0, 0)


def test_many_items_are_drawn_in_parts_with_the_same_result(monkeypatch: pytest.MonkeyPatch) -> None:
    candidate, champion = np.random.default_rng(1).random((2, 500))
    whole = more(candidate, champion, 0.95, 300, 0)
    monkeypatch.setattr("baton.tasks.promote.bootstrap.DRAWS_AT_ONCE", 1_000)
    assert more(candidate, champion, 0.95, 300, 0) == whole


def test_of_too_few_items_there_is_no_bound() -> None:
    assert [items_needed(confidence) for confidence in (0.5, 0.75, 0.9, 0.95, 0.99)] == [1, 2, 4, 5, 7]
    found = fewer(np.array([1.0] * 4), np.array([2.0] * 4), 0.95, 200, 0)
    assert (found.value, found.low, found.high) == (0.5, None, None)
