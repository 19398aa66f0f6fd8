"""Default learning rates."""

import re
from pathlib import Path

import pytest

from baton.tasks.models.rates import ANY_SIZE, Rate, unusual
from baton.tasks.posttrain.adapter_spec import AdapterSpec
from baton.tasks.posttrain.methods import METHODS
from baton.tasks.posttrain.methods.sft import SFTSpec
from baton.tasks.pretrain.optimizer_spec import RATES, OptimizerSpec
from baton.tasks.pretrain.spec import PretrainSpec
from baton.workflows.continuous_training.recipe import GrowSpec


def rows(page: str, first: str) -> list[list[str]]:
    """Return the cells of a table of the docs, without its header."""
    table = re.search(rf"\| {first} \|.*\n\|[-|]+\n((?:\|.*\n)+)", Path("docs", page).read_text())
    assert table
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table[1].splitlines()]


@pytest.mark.parametrize("row", rows("post-training.md", "parameters"), ids=lambda row: " ".join(row[:2]))
def test_the_documented_rates_are_the_default(row: list[str]) -> None:
    billions, method, rate, with_lora, _ = row
    parameters = int(float(billions.removesuffix(" B")) * 1e9)
    spec = METHODS[method]()
    assert spec.resolved(parameters).learning_rate == float(rate)
    assert spec.model_copy(update={"adapter": AdapterSpec()}).resolved(parameters).learning_rate == float(with_lora)


def test_the_documented_rates_of_pretraining_are_the_default() -> None:
    assert [(float(lr), source) for _, lr, source in rows("pretraining.md", "parameters")] == [
        (rate.value, rate.source) for rate in RATES
    ]


def test_an_explicit_rate_is_kept() -> None:
    assert SFTSpec(learning_rate=5e-4, warmup_steps=3).resolved(8_000_000_000).learning_rate == 5e-4
    assert PretrainSpec(optimizer=OptimizerSpec(lr=1e-2)).resolved(4096, continued=False).optimizer.lr == 1e-2


@pytest.mark.parametrize(("steps", "warmup"), [(1, 0), (5, 0), (100, 10), (1_000_000, 2000)])
def test_the_default_warmup_bends_to_few_steps(steps: int, warmup: int) -> None:
    spec = SFTSpec(steps=steps).resolved(100)
    assert spec.warmup_steps == warmup and not spec.problems()
    pretraining = PretrainSpec(steps=steps).resolved(4096, continued=False)
    assert pretraining.optimizer.warmup_steps == warmup and not pretraining.problems()


def test_ten_times_the_default_is_no_warning_and_more_is() -> None:
    assert SFTSpec(learning_rate=2e-4).rate_warning(135_000_000) is None
    warning = SFTSpec(learning_rate=5e-4).rate_warning(135_000_000)
    assert warning and "25 times the default for a model of this size, 2e-05 (TRL's default" in warning
    assert SFTSpec(learning_rate=5e-4, adapter=AdapterSpec()).rate_warning(135_000_000) is None


def test_a_rate_at_a_limit_is_no_warning_whatever_the_rounding_of_the_quotient() -> None:
    of_three, of_one = Rate(ANY_SIZE, 0.0003, "a paper"), Rate(ANY_SIZE, 0.0001, "a paper")
    assert 0.003 / of_three.value > 10 and 1e-7 / of_one.value < 1e-3
    assert unusual(0.003, of_three) is None and unusual(1e-7, of_one) is None
    assert unusual(0.00301, of_three) and unusual(0.99e-7, of_one)


def test_a_rate_that_is_rounded_away_is_a_warning() -> None:
    assert SFTSpec(learning_rate=2e-8).rate_warning(135_000_000) is None
    warning = SFTSpec(learning_rate=1e-45).rate_warning(135_000_000)
    assert warning and "hardly change a weight, or are rounded away; leave the field out" in warning


def test_an_existing_models_weights_are_not_trained_as_random_ones() -> None:
    spec = PretrainSpec()
    new, continued = (spec.resolved(4096, continued=from_model).optimizer for from_model in (False, True))
    assert (new.lr, new.min_lr) == (3e-3, 3e-4) and (continued.lr, continued.min_lr) == (3e-4, 3e-5)


def test_later_generations_follow_the_first() -> None:
    first = PretrainSpec(optimizer=OptimizerSpec(lr=3e-4)).resolved(4096, continued=False).optimizer
    assert GrowSpec().rates(first) == (1e-4, 3e-5)
    assert GrowSpec(lr=2e-5, min_lr=1e-5).rates(first) == (2e-5, 1e-5)
