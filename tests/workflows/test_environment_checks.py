"""Unusable environments are reported before any compute."""

import json
from pathlib import Path
from typing import Any

import pytest

from baton.workflows.checks.table import checked
from baton.workflows.recipe import Recipe
from baton.workflows.recipe.error import RecipeError
from tests.posttrain.tiny import tiny_model

SHOP = Path(__file__).parents[1] / "environments" / "shop.py"
ROWS = [{"prompt": [{"role": "user", "content": f"Buy {n}."}], "money": n} for n in range(40)]


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.chdir(tmp_path)
    tiny_model(tmp_path / "model", turns=True)
    Path("shop.py").write_text(SHOP.read_text())
    Path("reward.py").write_text("def rich(completions, environments): return [one.money for one in environments]\n")
    write(ROWS)
    return {
        "start_from": {"model": "model"},
        "data": {"customers": {"path": "customers.jsonl", "held_out": 0}},
        "post_training": [
            {"grpo": {"data": "customers", "environment": "shop.py:Shop", "rewards": ["reward.py:rich"]}}
        ],
    }


def write(rows: list[dict[str, Any]]) -> None:
    Path("customers.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_an_environment_that_can_be_used_passes(recipe: dict[str, Any]) -> None:
    recipe["data"]["guests"] = {"path": "customers.jsonl", "held_out": 1}
    recipe["evaluate"] = {"shop": {"data": "guests", "environment": "shop.py:Shop", "rewards": ["reward.py:rich"]}}
    checked(Recipe.model_validate(recipe))


@pytest.mark.parametrize(
    ("fields", "rows", "path", "words"),
    [
        ({"environment": "shop.py:Silent"}, ROWS, "environment", "act needs type hints and a Google-style docstring"),
        ({"environment": "shop.py:Shops"}, ROWS, "environment.name", "a function of shop.py: Shop, Silent"),
        ({}, [row | {"money": -1} for row in ROWS], "environment", "Shop.reset raised ValueError: no debts (shop.py, "),
        ({}, [row | {"prompt": "Buy."} for row in ROWS], "data", "rows whose prompts are messages"),
        ({"environment": None, "rewards": []}, ROWS, "rewards", "at least one, or an environment with get_reward"),
        ({"environment": "shop.py:Free", "rewards": []}, ROWS, "rewards", "shop.py:Free has no get_reward()"),
    ],
)
def test_one_that_cannot_is_reported(
    recipe: dict[str, Any], fields: dict[str, Any], rows: list[dict[str, Any]], path: str, words: str
) -> None:
    recipe["post_training"][0]["grpo"] |= fields
    write(rows)

    with pytest.raises(RecipeError) as caught:
        checked(Recipe.model_validate(recipe))

    problem = caught.value.problems[0]
    assert problem.path == f"post_training.0.grpo.{path}" and words in problem.allowed


@pytest.mark.parametrize(
    ("fields", "path", "words"),
    [
        ({"environment": "shop.py:Free"}, "rewards", "shop.py:Free has no get_reward()"),
        ({"environment": "shop.py:Silent"}, "environment", "act needs type hints"),
        ({"rewards": ["reward.py:rich"]}, "rewards.0", "environments"),
    ],
)
def test_an_evaluator_s_environment_is_tried_too(
    recipe: dict[str, Any], fields: dict[str, Any], path: str, words: str
) -> None:
    recipe["data"]["guests"] = {"path": "customers.jsonl", "held_out": 1}
    recipe["evaluate"] = {"shop": {"data": "guests"} | fields}

    with pytest.raises(RecipeError) as caught:
        checked(Recipe.model_validate(recipe))

    problem = caught.value.problems[0]
    assert problem.path == f"evaluate.shop.{path}" and words in problem.allowed
