"""The example of a tool."""

import pytest
from click.testing import CliRunner

from tests.source import ROOT
from workflows.plan.__main__ import main


def test_the_recipe_can_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its rows are made, its tool is described, and the reward is tried on the rows, as before any run."""
    monkeypatch.chdir(ROOT)  # the recipe names its file from there
    planned = CliRunner().invoke(main, ["workflows/recipes/calculator/recipe.yaml"])
    assert planned.exit_code == 0, planned.output
    assert "no problem found" in planned.output
