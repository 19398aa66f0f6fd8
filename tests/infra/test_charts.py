import math
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from baton.infra.drawing.charts import HEIGHT, LARGEST, MOST_POINTS, WIDTH, bars, curves
from tests.pages.reading import Reading

NUMBER = st.floats(-LARGEST, LARGEST)


def coordinates(svg: str) -> list[float]:
    return [float(number) for path in Reading(svg).values("d") for number in re.findall(r"-?[\d.]+", path)]


def description(svg: str) -> str:
    """Return the label that describes a drawing."""
    (label,) = Reading(svg).values("aria-label")
    return label


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 10**6).map(float), NUMBER), min_size=1, unique_by=lambda point: point[0]))
def test_every_curve_stays_inside_its_drawing(points: list[tuple[float, float]]) -> None:
    drawn = coordinates(curves("loss", {"loss": sorted(points)}))
    assert all(math.isfinite(number) and -1 <= number <= max(WIDTH, HEIGHT) + 1 for number in drawn)


def test_the_smallest_number_there_is_can_be_drawn() -> None:
    assert coordinates(curves("loss", {"loss": [(0, 5e-324), (1, 0.0)]}))


def test_a_curve_says_in_words_where_it_goes() -> None:
    figure = curves("Loss", {"loss": [(1, 8.3), (600, 2.25)], "validation loss": [(600, 2.4)]})
    assert description(figure) == "Loss over steps: loss from 8.3 to 2.25; validation loss from 2.4 to 2.4"


def test_a_long_training_is_thinned_to_its_ends_and_equal_stretches() -> None:
    points = [(float(step), 1 / (step + 1)) for step in range(100_000)]
    svg = curves("loss", {"loss": points})
    assert len(coordinates(svg)) / 2 <= 2 * (MOST_POINTS + 2)
    assert ">40,000<" in svg


def test_few_points_are_not_smoothed() -> None:
    svg = curves("loss", {"loss": [(1, 1.0), (2, 5.0), (3, 1.0)]})
    assert "raw" not in svg


@pytest.mark.parametrize("around", [1.0, 1e-6, 1e9])
def test_ticks_can_be_told_apart(around: float) -> None:
    svg = curves("x", {"x": [(1, around), (2, around * 1.01)]})
    ticks = re.findall(r'class="tick end"[^>]*>([^<]+)<', svg)
    assert len(ticks) >= 3 and len(set(ticks)) == len(ticks)


def test_bars_stand_in_proportion_and_carry_their_values() -> None:
    figure = bars("Right", [("base", 0.25), ("grpo", 0.5)], lambda value: f"{value:.0%}", top=1.0)
    heights = [float(height) for height in Reading(figure).values("height")]
    assert heights[1] == pytest.approx(2 * heights[0], abs=0.2)
    assert description(figure) == "Right: base 25%, grpo 50%"


def test_the_ceiling_is_drawn_and_said() -> None:
    figure = bars("Right", [("base", 0.0)], lambda value: f"{value:.0%}", top=1.0, ceiling=("reference", 0.98))
    assert "ceiling" in figure and description(figure).endswith("reference 98%")


def test_the_same_data_is_the_same_drawing() -> None:
    points = [(float(step), math.sin(step)) for step in range(500)]
    assert curves("x", {"x": points}) == curves("x", {"x": points})


@settings(deadline=None)
@given(st.lists(st.floats(1e-12, 1e12), min_size=1, max_size=50))
def test_a_logarithmic_curve_stays_inside_its_drawing(values: list[float]) -> None:
    drawn = coordinates(curves("lr", {"lr": [(float(step), value) for step, value in enumerate(values)]}, log=True))
    assert all(-1 <= number <= max(WIDTH, HEIGHT) + 1 for number in drawn)


def test_a_curve_with_negative_values_stays_linear() -> None:
    points = {"reward": [(0.0, -1.0), (1.0, 100.0)]}
    assert curves("reward", points, log=True) == curves("reward", points)


def test_a_curve_carries_its_values_and_the_name_of_its_axis() -> None:
    svg = curves("loss", {"loss": [(1, 2.5), (4, 2.25)]}, unit="client")
    assert Reading(svg).values("data-values") == ["1 2.5;4 2.25"]
    assert ">clients<" in svg
