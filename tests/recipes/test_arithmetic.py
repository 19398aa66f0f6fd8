"""The example of sums: its rows, its reward, and the results of its recipe."""

import json
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from baton.tasks.rewards.gold import check_gold
from baton.tasks.rewards.spec import RewardSpec
from baton.tasks.user_code.functions import Function
from baton.workflows.plan.command import main
from tests.shipped import shipped
from tests.source import ROOT
from tests.workflows.test_pretrain_to_rl import pyflyte

FOLDER = ROOT / "workflows/recipes/arithmetic"


@pytest.fixture
def load(tmp_path: Path) -> Callable[[str], Callable[..., Any]]:
    """Load a function of the example's file by its name, as a user's function is loaded."""
    return lambda name: Function(name=f"{FOLDER / 'sums.py'}:{name}").pinned().load(tmp_path)


Load = Callable[[str], Callable[..., Any]]


def test_two_answers_of_three_are_right_in_rows_and_text(load: Load) -> None:
    rows = list(load("rows")())
    lines = "".join(load("documents")(count=100)).splitlines()
    of_text = [tuple(line.split("=")) for line in lines]

    def share(asked: list[str], answers: list[str]) -> float:
        said = load("right")(prompts=asked, completions=answers)
        return sum(said) / len(said)

    assert share([row["prompt"] for row in rows], [row["completion"] for row in rows]) == pytest.approx(2 / 3, abs=0.05)
    assert share([each[0] for each in of_text], [each[1] for each in of_text]) == pytest.approx(2 / 3, abs=0.05)


def test_a_sum_is_asked_once(load: Load) -> None:
    """Equal rows are reduced to one. Otherwise a frequent sum would keep all of its mistakes, but only one right
    answer."""
    prompts = [row["prompt"] for row in load("rows")()]
    assert len(prompts) == len(set(prompts)) == 1000


@pytest.mark.parametrize(
    ("completion", "worth"), [("16", 1), ("16\n", 1), ("15", 0), ("16\n3+8", 0), ("016", 0), ("", 0)]
)
def test_the_reward_is_for_the_sum_and_nothing_else(load: Load, completion: str, worth: float) -> None:
    assert load("right")(prompts=["3+8+5="], completions=[completion], completion=["17"]) == [worth]


def test_the_rows_own_answers_are_worth_more_than_others(load: Load) -> None:
    (line,) = check_gold([RewardSpec.model_validate(f"{FOLDER / 'sums.py'}:right")], islice(load("rows")(), 500, 600))
    assert line.own is not None and line.others is not None
    assert line.own > line.others + 0.3


def test_the_recipe_can_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)  # the recipe's path to the file is relative to it
    planned = CliRunner().invoke(main, [str(FOLDER / "recipe.yaml")])
    assert planned.exit_code == 0, planned.output
    assert "no problem found" in planned.output


@pytest.mark.long
@pytest.mark.usefixtures("vllm")
def test_grpo_adds_twenty_points_to_sft(tmp_path: Path) -> None:
    """Run the shipped recipe with the first of its three seeds."""
    recipe = shipped("arithmetic/recipe.yaml") | {"seeds": 1}
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    done = pyflyte(tmp_path, tmp_path / "recipe.yaml")
    assert done.returncode == 0, done.stderr[-5000:] + done.stdout[-3000:]

    reports = [json.loads(path.read_text()) for path in (tmp_path / "baton/jobs").glob("evaluate-*/output/report.json")]
    right = {each["label"]: each["metrics"]["sums.right"]["value"] for each in reports}
    assert right["sft"] < 0.75  # two thirds of its rows are right
    assert right["grpo"] - right["sft"] >= 0.2
