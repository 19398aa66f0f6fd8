"""The titles of the stages to come, against the DAG that Flyte compiles."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from tasks.posttrain.spec import PostTrainSpec
from tests.source import ROOT
from workflows.dry_run import steps_of
from workflows.recipe import Recipe
from workflows.stage_titles import stage_titles

LAPTOP = yaml.safe_load((ROOT / "workflows/recipes/laptop.yaml").read_text())
RECIPES: dict[str, dict[str, Any]] = {
    "laptop": LAPTOP,
    "two seeds, no audit": LAPTOP | {"seeds": 2, "audit": None},
    "without evaluation": {name: spec for name, spec in LAPTOP.items() if name not in ("evaluate", "publish")},
}


@pytest.mark.parametrize("name", RECIPES)
def test_the_titles_are_those_of_the_compiled_dag(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATON_HOME", str(tmp_path))
    recipe = Recipe.model_validate(RECIPES[name])
    compiled = [each.name if isinstance(each.spec, PostTrainSpec) else each.stage for each in steps_of(recipe)]
    titles = stage_titles(recipe)
    assert ["evaluate" if title.startswith("evaluate-") else title for title in titles] == compiled
