"""Metrics that were measured for several seeds."""

import pytest

from baton.tasks.core.seeds import Spread, by_model, label_of, title_of, without_seed


@pytest.mark.parametrize("name", ["grpo", "sft-2", "my-seed", "seed1"])
def test_repetitions_are_found_by_their_labels(name: str) -> None:
    labels = [label_of(name, repetition) for repetition in range(12)]
    assert labels[0] == name and len(set(labels)) == 12
    assert {without_seed(label) for label in labels} == {name}


@pytest.mark.parametrize(
    ("label", "title"),
    [("sft", "sft"), ("sft-2", "sft-2"), ("sft-seed1", "sft seed 1"), ("maths-seed12", "sft maths seed 12")],
)
def test_a_repetition_is_called_by_its_seed(label: str, title: str) -> None:
    assert title_of("sft", label) == title


def test_runs_are_kept_together_in_their_order() -> None:
    assert by_model(["base", "sft", "grpo", "sft-seed1", "grpo-seed1"], str) == {
        "base": ["base"],
        "sft": ["sft", "sft-seed1"],
        "grpo": ["grpo", "grpo-seed1"],
    }


def test_the_spread_is_the_sample_standard_deviation() -> None:
    found = Spread.of([0.2, 0.3, 0.7])
    assert found.mean == pytest.approx(0.4) and found.deviation == pytest.approx((0.14 / 2) ** 0.5)
    assert found.shown("share") == "40.0 % ± 26.5"


@pytest.mark.parametrize("values", [[0.4], [0.4, float("inf")], [0.4, float("nan")]])
def test_one_seed_and_what_is_no_number_have_no_spread(values: list[float]) -> None:
    assert Spread.of(values).deviation is None
