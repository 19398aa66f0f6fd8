"""The recipes that are shipped."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from workflows.recipe import Recipe
from workflows.recipe_error import RecipeError

RECIPES = Path(__file__).parents[2] / "workflows" / "recipes"


def read(name: str) -> dict[str, Any]:
    recipe: dict[str, Any] = yaml.safe_load((RECIPES / f"{name}.yaml").read_text())
    return recipe


@pytest.mark.parametrize("name", ["laptop", "naive", "gpu"])
def test_a_shipped_recipe_is_right(name: str) -> None:
    assert Recipe.model_validate(read(name)).name == name


def test_the_recipe_to_enter_midway_lacks_only_the_model() -> None:
    with pytest.raises(RecipeError) as caught:
        Recipe.model_validate(read("rl-only"))
    assert [problem.path for problem in caught.value.problems] == ["start_from.model"]


def test_the_naive_recipe_differs_from_the_laptops_in_grpo_alone() -> None:
    laptop, naive = read("laptop"), read("naive")
    assert {name for name in laptop if laptop[name] != naive.get(name)} == {"name", "grpo", "publish"}
