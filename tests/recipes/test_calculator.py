"""The example of a tool: its rows, and what its recipe makes."""

import json
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from tasks.functions import Function
from tests.source import ROOT
from tests.workflows.test_pretrain_to_rl import pyflyte
from workflows.plan import main

FOLDER = ROOT / "workflows/recipes/calculator"


def test_half_of_the_answers_are_the_calculator_s(tmp_path: Path) -> None:
    rows = list(Function(name=f"{FOLDER / 'calculator.py'}:answers").as_found().load(tmp_path)())
    calculated = [row for row in rows if row["messages"][-2]["role"] == "tool"]
    assert len(calculated) / len(rows) == pytest.approx(1 / 2, abs=0.02)


def test_the_recipe_can_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)  # the recipe names its file from there
    planned = CliRunner().invoke(main, [str(FOLDER / "recipe.yaml")])
    assert planned.exit_code == 0, planned.output
    assert "no problem found" in planned.output


@pytest.mark.long
@pytest.mark.usefixtures("vllm")
def test_grpo_learns_to_call_the_calculator(tmp_path: Path) -> None:
    """The recipe as it is shipped, with the first of its seeds."""
    recipe = yaml.safe_load((FOLDER / "recipe.yaml").read_text()) | {"seeds": 1}
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    done = pyflyte(tmp_path, tmp_path / "recipe.yaml", cwd=ROOT)  # the recipe names its file from there
    assert done.returncode == 0, done.stderr[-5000:] + done.stdout[-3000:]

    reports = [json.loads(path.read_text()) for path in (tmp_path / "baton/jobs").glob("evaluate-*/output/report.json")]
    metrics = {each["label"]: each["metrics"] for each in reports}
    sft, grpo = (metrics[label] for label in ("sft", "grpo"))
    assert grpo["products.match"]["value"] - sft["products.match"]["value"] >= 0.2
    assert grpo["products.tool_calls"]["value"] > sft["products.tool_calls"]["value"]
