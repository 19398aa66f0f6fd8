"""The example of a tool."""

import pytest
from click.testing import CliRunner

from baton.workflows.plan.command import main
from tests.source import ROOT


def test_the_recipe_can_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """As before any run, its rows are made, its tool is described, and its reward is tried on the rows."""
    monkeypatch.chdir(ROOT)  # the recipe's path to the file is relative to it
    planned = CliRunner().invoke(main, ["workflows/recipes/calculator/recipe.yaml"])
    assert planned.exit_code == 0, planned.output
    assert "no problem found" in planned.output
