"""What an evaluation may be asked for."""

import pytest
from pydantic import ValidationError

from tasks.evaluate.spec import EvaluateSpec


def test_the_default_is_the_models_own_distribution_on_at_least_500_prompts() -> None:
    spec = EvaluateSpec()
    assert (spec.temperature, spec.top_p) == (1.0, 1.0)
    assert spec.prompts >= 500


@pytest.mark.parametrize(
    "wrong",
    [
        {"prompts": 0},
        {"prompts": "many"},
        {"temperature": 0},
        {"temperature": 2.5},
        {"top_p": 0},
        {"top_p": 1.1},
        {"max_new_tokens": 0},
        {"max_prompt_chars": 0},
        {"prompts_per_function": 0},
        {"held_out_bytes": 0},
        {"seed": -1},
        {"beams": 4},
    ],
)
def test_what_it_may_not_be_asked_for(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        EvaluateSpec.model_validate(wrong)
