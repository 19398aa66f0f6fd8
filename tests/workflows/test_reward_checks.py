"""Unusable rewards are reported before any compute, and an invalid recipe has no plan."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from baton.workflows.checks.table import checked
from baton.workflows.plan.command import main
from baton.workflows.recipe import Recipe
from baton.workflows.recipe.error import RecipeError
from tests.posttrain.tiny import tiny_model

ROWS = [{"prompt": f"{n}+1=", "answer": str(n + 1)} for n in range(40)]


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return a recipe with GRPO and an evaluator on a user's rows in the current folder."""
    monkeypatch.chdir(tmp_path)
    tiny_model(tmp_path / "model", turns=True)
    Path("sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    Path("reward.py").write_text("def right(completions, answer): return [0.0] * len(completions)\n")
    return {
        "start_from": {"model": "model"},
        "data": {"sums": {"path": "sums.jsonl", "held_out": 0.2}},
        "post_training": [{"grpo": {"data": "sums", "rewards": ["reward.py:right"]}}],
        "evaluate": {"sums": {"data": "sums", "rewards": ["reward.py:right", "match"]}},
    }


def test_rewards_that_can_be_called_with_the_rows_pass(recipe: dict[str, Any]) -> None:
    checked(Recipe.model_validate(recipe))


def test_a_column_with_the_name_of_an_argument_is_reported_where_rewards_are_used(recipe: dict[str, Any]) -> None:
    Path("sums.jsonl").write_text("".join(json.dumps(row | {"completions": []}) + "\n" for row in ROWS))
    with pytest.raises(RecipeError) as caught:
        checked(Recipe.model_validate(recipe))
    assert [problem.path for problem in caught.value.problems] == [
        "post_training.0.grpo.rewards",
        "evaluate.sums.rewards",
    ]
    assert "{completions: null} to leave it out" in caught.value.problems[0].allowed


@pytest.mark.parametrize(
    ("reward", "words"),
    [
        ("import nowhere\ndef f(completions): ...", "No module named 'nowhere' (bad.py, line 1"),
        ("def f(text): ...", "reward f takes (text): a reward must take completions"),
        ("def f(completions, gold): ...", "needs rows with a column gold; those of sums have answer, "),
    ],
)
def test_a_reward_that_cannot_be_used_is_reported(recipe: dict[str, Any], reward: str, words: str) -> None:
    Path("bad.py").write_text(reward)
    recipe["post_training"][0]["grpo"]["rewards"] = ["bad.py:f"]
    recipe["evaluate"]["sums"]["rewards"] = ["bad.py:f"]
    with pytest.raises(RecipeError) as caught:
        checked(Recipe.model_validate(recipe))
    assert [problem.path for problem in caught.value.problems] == [
        "post_training.0.grpo.rewards.0",
        "evaluate.sums.rewards.0",
    ]
    assert all(words in problem.allowed for problem in caught.value.problems)


def test_a_built_in_reward_that_finds_no_answer_in_the_rows_is_reported(recipe: dict[str, Any]) -> None:
    recipe["evaluate"]["sums"]["rewards"] = [{"match": {"column": "anwser"}}]
    with pytest.raises(RecipeError, match="needs rows with a column anwser; those of sums have answer"):
        checked(Recipe.model_validate(recipe))


def test_one_set_of_rows_can_serve_sft_and_a_reward(recipe: dict[str, Any]) -> None:
    """The refusal names the columns with which both can use it, and they can."""
    recipe["post_training"].insert(0, {"sft": {"data": "sums", "steps": 2}})
    with pytest.raises(RecipeError) as caught:
        checked(Recipe.model_validate(recipe))
    (problem,) = caught.value.problems
    columns = {"completion": "answer", "answer": "answer"}
    assert problem.path == "post_training.0.sft.data"
    assert "data.sums.columns: {completion: answer, answer: answer}" in problem.allowed
    recipe["data"]["sums"]["columns"] = columns
    checked(Recipe.model_validate(recipe))


def test_what_runs_elsewhere_is_imported_there(recipe: dict[str, Any]) -> None:
    Path("reward.py").write_text("import nowhere\ndef right(completions, answer): ...\n")
    placed = {"placement": {"accelerators": ["H100:1"], "max_price_per_run": 1000}}
    recipe["post_training"][0]["grpo"] |= placed
    del recipe["evaluate"]
    try:
        checked(Recipe.model_validate(recipe))
    except RecipeError as error:
        assert "nowhere" not in str(error)


def _set(name: str, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda recipe: recipe["post_training"][0].update({name: value})


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda recipe: recipe["evaluate"]["sums"].update(data="sumz"), "evaluate.sums.data"),
        (lambda recipe: recipe["post_training"][0]["grpo"].pop("data"), "post_training.0.grpo.data"),
        (_set("start_from", "nobody"), "post_training.0.start_from"),
        (_set("sft", {"data": "sums"}), "post_training.0"),
        (_set("grpo", None), "post_training.0"),
    ],
)
def test_of_a_recipe_without_a_dag_the_plan_says_what_is_wrong(
    recipe: dict[str, Any], change: Callable[[dict[str, Any]], None], field: str
) -> None:
    change(recipe)
    Path("recipe.yaml").write_text(yaml.safe_dump(recipe))
    ended = CliRunner().invoke(main, ["recipe.yaml"])
    assert ended.exit_code == 2, ended.exception
    assert f"  {field}: " in ended.output
