"""Validation of a serve spec."""

import pytest
from pydantic import ValidationError

from baton.tasks.serve.server import engine_arguments
from baton.tasks.serve.spec import LoadSpec, ServeSpec


def test_the_default_measures_one_client_to_sixty_four() -> None:
    load = ServeSpec().load
    assert load is not None
    assert (load.concurrency[0], load.concurrency[-1]) == (1, 64)
    assert ServeSpec().problems() == []


@pytest.mark.parametrize(
    ("clients", "allowed"),
    [([4, 1], "begin with 1"), ([2, 4], "begin with 1"), ([1, 1], "increasing"), ([1, 5000], "1 to 1024")],
)
def test_levels_begin_with_one_client_and_rise(clients: list[int], allowed: str) -> None:
    problems = ServeSpec(load=LoadSpec(concurrency=clients)).problems()
    assert any(problem.path == "load.concurrency" and allowed in problem.allowed for problem in problems)


def test_the_load_has_to_fit_into_the_length_that_is_served() -> None:
    (problem,) = ServeSpec(max_model_len=100).problems()
    assert str(problem) == "max_model_len: 100: at least load's prompt plus response (192)"
    assert ServeSpec(max_model_len=100, load=None).problems() == []


@pytest.mark.parametrize("wrong", [{"dtype": "int3"}, {"gpu_memory_share": 0}, {"load": {"output_tokens": 1}}])
def test_what_it_may_not_be_asked_for(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        ServeSpec.model_validate(wrong)


def test_remote_code_is_never_trusted() -> None:
    assert not [word for word in engine_arguments(ServeSpec(max_model_len=64)) if "trust" in word]
