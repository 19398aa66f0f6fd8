"""Paths in a recipe are relative to the recipe, wherever the command is run."""

import json
from pathlib import Path

import pytest

from baton.workflows.recipe import Recipe
from baton.workflows.recipe.error import RecipeError
from baton.workflows.recipe.text import load

RECIPE = """\
name: mine
start_from: {model: gpt2}
data:
  chat: {path: "rows/*.jsonl"}
  sums: {function: "task.py:rows"}
evaluate:
  sums: {data: sums, rewards: ["pack.rewards:right"]}
  tasks: {lm_eval: [mine.yaml, arc_easy]}
stages:
  - {name: merged, stage: "task.py:merge", inputs: [base]}
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder above the recipe's."""
    folder = tmp_path / "project"
    for name in ("rows/a.jsonl", "task.py", "pack/__init__.py", "pack/rewards.py", "mine.yaml"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    (folder / "recipe.yaml").write_text(RECIPE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def read() -> Recipe:
    return load("project/recipe.yaml", Recipe.model_validate)


@pytest.mark.usefixtures("here")
def test_a_path_is_looked_for_beside_the_recipe() -> None:
    recipe = read()
    assert recipe.data["chat"].path == "project/rows/*.jsonl"
    assert recipe.data["sums"].function and recipe.data["sums"].function.name == "project/task.py:rows"
    assert recipe.stages[0].stage == "project/task.py:merge"
    assert "project/pack/rewards.py:right" in json.dumps(recipe.model_dump(mode="json"))


@pytest.mark.usefixtures("here")
def test_a_name_of_the_hub_or_of_a_task_stays_as_it_is() -> None:
    recipe = read()
    assert recipe.start_from and recipe.start_from.model == "gpt2"
    assert '["project/mine.yaml", "arc_easy"]' in json.dumps(recipe.model_dump(mode="json"))


def test_a_file_that_only_the_current_folder_has_is_named(here: Path) -> None:
    (here / "project/task.py").rename(here / "task.py")
    with pytest.raises(
        RecipeError, match=r"(?s)data\.sums\.function\.name: .*relative to the recipe; in project there is none"
    ):
        read()


def test_in_the_recipe_s_folder_nothing_changes(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(here / "project")
    assert load("recipe.yaml", Recipe.model_validate) == Recipe.model_validate(read_here())


def read_here() -> object:
    from ruamel.yaml import YAML

    return YAML(typ="safe").load(Path("recipe.yaml"))
