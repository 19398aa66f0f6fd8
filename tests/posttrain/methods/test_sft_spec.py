"""Validation of an SFT spec."""

import pytest
from pydantic import ValidationError

from baton.tasks.posttrain.layout import TuningLayout
from baton.tasks.posttrain.methods.sft import SFTSpec


def test_the_defaults_have_no_problems() -> None:
    assert SFTSpec(data="chat").problems() == []


def test_micro_batches_have_to_fill_the_batch() -> None:
    (problem,) = SFTSpec(data="chat", batch_size=32, layout=TuningLayout(micro_batch=12)).problems()

    assert str(problem) == "layout.micro_batch: 12: a divisor of batch_size 32"


@pytest.mark.parametrize(
    "wrong", [{"steps": 0}, {"learning_rate": 0}, {"engine": "verl"}, {"epochs": 3}, {"loss": "prompt"}]
)
def test_impossible_values_and_unknown_fields_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        SFTSpec.model_validate({"data": "chat"} | wrong)
