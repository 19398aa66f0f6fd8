"""A metric with its standard error."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.tasks.core.metric import Metric


def test_a_mean_has_the_standard_error_of_the_mean() -> None:
    metric = Metric.mean([1.0, 0.0, 1.0, 0.0], unit="share")

    assert (metric.value, metric.count, metric.unit) == (0.5, 4, "share")
    assert metric.standard_error == pytest.approx(0.288675)
    assert str(metric) == "0.5 ± 0.29 share"


def test_what_does_not_apply_is_left_out() -> None:
    assert Metric.mean([1.0, None, 3.0]).count == 2


def test_one_value_has_no_standard_error() -> None:
    assert Metric.mean([2.5]).standard_error is None


def test_no_value_has_no_mean() -> None:
    with pytest.raises(ValueError, match="the mean of no values"):
        Metric.mean([None])


@pytest.mark.parametrize(("higher_is_better", "best"), [(True, 2.4), (False, 1.2)])
def test_the_best_is_a_matter_of_the_direction_and_never_not_a_number(higher_is_better: bool, best: float) -> None:
    values = [Metric(value, None, 10, "", higher_is_better) for value in (float("nan"), 1.2, 2.4)]

    assert max(values, key=Metric.worth).value == best


@given(st.lists(st.floats(-1e6, 1e6), min_size=2))
def test_a_mean_lies_between_its_values(values: list[float]) -> None:
    metric = Metric.mean(values)

    assert min(values) - 1e-6 <= metric.value <= max(values) + 1e-6
    assert metric.standard_error is not None and metric.standard_error >= 0
