"""Trackers beside MLflow in a recipe: what is refused before a run, and that no result depends on them."""

from pathlib import Path

import pytest

from baton.infra.tracking.sinks import TRACKERS
from baton.workflows.checks.run_context import for_a_cluster
from baton.workflows.checks.trackers import problems_of_trackers
from baton.workflows.dag.calls import calls
from baton.workflows.recipe import Recipe, context_of
from baton.workflows.recipe.error import RecipeError

SECTIONS = {"corpus": {"source": {"kind": "files", "path": "/nowhere"}}, "tokenizer": {"vocab_size": 512}}


def refused(*also: str) -> list[str]:
    recipe = Recipe.model_validate({"tracking": {"also": [*also]}})
    return [str(problem) for problem in problems_of_trackers(context_of(recipe))]


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("WANDB_MODE", "WANDB_API_KEY", "WANDB_BASE_URL", "TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))


def test_a_tracker_that_is_not_installed_is_refused_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("baton.infra.tracking.sinks.find_spec", lambda name: None)
    (problem,) = refused("tensorboard")
    assert problem.startswith("tracking.also: 'tensorboard': a tracker whose package is installed")
    assert "python -m pip install 'tensorboard>=2.21,<2.22'" in problem


def test_wandb_needs_a_key_unless_it_is_offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (problem,) = refused("wandb")
    assert "`wandb login`, WANDB_API_KEY, or WANDB_MODE=offline" in problem
    for name, value in (("WANDB_MODE", "offline"), ("WANDB_API_KEY", "a key")):
        with monkeypatch.context() as given:
            given.setenv(name, value)
            assert refused("wandb") == []
    monkeypatch.setenv("WANDB_BASE_URL", "http://wandb.example:8080")
    (tmp_path / "netrc").write_text("machine wandb.example login user password x")
    assert refused("wandb") == []
    monkeypatch.setenv("WANDB_MODE", "disabled")
    assert "WANDB_MODE=disabled turns off" in refused("wandb")[0]


def test_a_run_on_a_cluster_has_no_tracker_but_mlflow() -> None:
    with for_a_cluster():
        (problem,) = refused("tensorboard")
    assert "none on a Flyte cluster" in problem


def test_a_recipe_names_each_tracker_once() -> None:
    recipe = Recipe.model_validate({"tracking": {"also": ["wandb", "wandb"]}})
    assert recipe.tracking and [problem.allowed for problem in recipe.tracking.problems()] == [
        "each tracker once, and not wandb twice"
    ]
    with pytest.raises(RecipeError, match="wandb"):
        Recipe.model_validate({"tracking": {"also": ["wand"]}})


def test_no_stage_depends_on_the_trackers() -> None:
    plain, tracked = (Recipe.model_validate(SECTIONS | more) for more in ({}, {"tracking": {"also": ["wandb"]}}))
    assert calls(plain) == calls(tracked)


def test_the_recipe_allows_the_trackers_that_there_are() -> None:
    schema = str(Recipe.model_json_schema()["$defs"]["TrackingSpec"])
    assert all(f"'{name}'" in schema for name in TRACKERS)
