"""Where a stage runs is no part of what it is."""

from typing import Any

import pytest
from flytekit.core.hash import HashMethod

from infra.placement.config import Placement
from tasks.pretrain.spec import PretrainSpec
from tasks.pretrain.task import pretrain
from tasks.spec import StageSpec
from workflows.recipe import SECTIONS, Recipe
from workflows.recipe_error import RecipeError

ELSEWHERE = {"accelerators": ["H100:8"], "spot": "spot_first", "max_price_per_hour": 40}


@pytest.mark.parametrize("section", SECTIONS)
def test_any_stage_may_be_placed(section: str) -> None:
    assert issubclass(SECTIONS[section], StageSpec)


def test_it_is_in_no_cache_key() -> None:
    (key,) = [each for each in pretrain.python_interface.inputs["spec"].__metadata__ if isinstance(each, HashMethod)]
    here, elsewhere = PretrainSpec(), PretrainSpec(placement=Placement.model_validate(ELSEWHERE))
    assert key.calculate(here) == key.calculate(elsewhere)
    assert here.identity() == elsewhere.identity()


def test_a_placed_task_differs_in_its_type_alone() -> None:
    placed: Any = pretrain._at(Placement())  # type: ignore[attr-defined]
    assert (placed.task_type, pretrain.task_type) == ("skypilot", "python-task")  # type: ignore[attr-defined]
    assert placed.name == pretrain.name  # type: ignore[attr-defined]
    assert placed.metadata.cache_version == pretrain.metadata.cache_version  # type: ignore[attr-defined]


def test_a_wrong_placement_is_a_problem_of_the_recipe() -> None:
    with pytest.raises(RecipeError, match=r"corpus.placement.acelerators(.|\n)*did you mean accelerators\?"):
        Recipe.model_validate({"corpus": {"placement": {"acelerators": []}}})
