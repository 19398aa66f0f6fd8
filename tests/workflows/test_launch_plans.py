"""The launch plans as a Flyte cluster would get them."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from flytekit import LaunchPlan
from flytekit.core.context_manager import FlyteContextManager
from flytekit.core.type_engine import TypeEngine
from flytekit.models.literals import Literal

import images
from tests.workflows.flyte_admin import admin
from workflows import launch_plans
from workflows.continuous_recipe import ContinuousRecipe
from workflows.version import version

ROOT = Path(__file__).parents[2]
PINNED = [f"--image={image.name}=registry.invalid/{image.name}:1" for image in images.BY_FAMILY.values()]
RECIPE: dict[str, Any] = yaml.safe_load((ROOT / "workflows/recipes/continuous.yaml").read_text())


@pytest.fixture(scope="module")
def registered(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What `pyflyte register` sends to a cluster for a recipe of somebody's own: the launch plans by their names."""
    recipe = tmp_path_factory.mktemp("recipe") / "mine.yaml"
    recipe.write_text(
        yaml.safe_dump(RECIPE | {"schedule": {"continue_training": "30 1 * * *", "notify": ["me@here.org"]}})
    )
    mine = os.environ | {"BATON_CONTINUOUS": str(recipe)}
    named = subprocess.run(
        [sys.executable, "-m", "workflows.version"], cwd=ROOT, env=mine, capture_output=True, text=True, check=True
    )
    pyflyte = str(Path(sys.executable).with_name("pyflyte"))
    with admin() as (service, address):
        done = subprocess.run(
            [
                pyflyte,
                "register",
                "workflows",
                "--copy",
                "none",
                "--project",
                "p",
                "--version",
                named.stdout.strip(),
                *PINNED,
            ],
            cwd=ROOT,
            env=mine | {"FLYTE_PLATFORM_URL": address, "FLYTE_PLATFORM_INSECURE": "true"},
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    assert {each.id.name for each in service.workflows} >= {"workflows.continuous.continue_training"}
    assert {each.id.name for each in service.tasks} >= {"tasks.promote.task.promote", "workflows.continuous.look"}
    return {each.id.name: each for each in service.launch_plans}


def test_every_plan_is_registered_under_the_version(registered: dict[str, Any]) -> None:
    assert {"nightly", "weekly"} <= registered.keys()
    (name,) = {plan.id.version for plan in registered.values()}
    commit, _, recipe = name.partition("-")
    assert len(commit) == 12 and recipe


@pytest.mark.parametrize(
    ("name", "cron", "workflow"),
    [
        ("nightly", "30 1 * * *", "workflows.continuous.continue_training"),
        ("weekly", "0 4 * * 0", "workflows.continuous.refresh_rl"),
    ],
)
def test_a_plan_says_what_runs_when_alone_and_who_is_told(
    registered: dict[str, Any], name: str, cron: str, workflow: str
) -> None:
    plan = registered[name].spec
    assert plan.workflow_id.name == workflow
    assert plan.entity_metadata.schedule.cron_schedule.schedule == cron
    assert plan.concurrency_policy.max == 1
    (told,) = plan.entity_metadata.notifications
    assert list(told.email.recipients_email) == ["me@here.org"]


@pytest.mark.parametrize("name", ["nightly", "weekly"])
def test_a_plan_s_recipe_is_fixed(registered: dict[str, Any], name: str) -> None:
    fixed = Literal.from_flyte_idl(registered[name].spec.fixed_inputs.literals["recipe"])
    recipe = TypeEngine.to_python_value(FlyteContextManager.current_context(), fixed, ContinuousRecipe)
    assert recipe.schedule.continue_training == "30 1 * * *"


@pytest.mark.parametrize("plan", launch_plans.PLANS, ids=lambda plan: str(plan.name))
def test_a_plan_runs_on_the_shipped_recipe(plan: LaunchPlan) -> None:
    assert plan.saved_inputs["recipe"] == ContinuousRecipe.model_validate(RECIPE)


def test_a_version_is_made_of_the_code_and_the_recipe() -> None:
    ours, theirs = (ContinuousRecipe.model_validate(RECIPE | change) for change in ({}, {"grow": {"replay": 0.1}}))
    assert version(ours) == version(ours) != version(theirs)
    assert version(ours).rpartition("-")[0] == version(theirs).rpartition("-")[0]
