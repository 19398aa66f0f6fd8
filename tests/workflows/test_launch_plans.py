"""The launch plans as a Flyte cluster would get them."""

import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from flyteidl.admin import launch_plan_pb2
from flytekit import LaunchPlan
from flytekit.core.context_manager import FlyteContextManager
from flytekit.core.type_engine import TypeEngine
from flytekit.models.literals import Literal

from workflows import launch_plans
from workflows.continuous_recipe import ContinuousRecipe

ROOT = Path(__file__).parents[2]
RECIPE: dict[str, Any] = yaml.safe_load((ROOT / "workflows/recipes/continuous.yaml").read_text())


@pytest.fixture(scope="module")
def packaged(tmp_path_factory: pytest.TempPathFactory) -> dict[str, launch_plan_pb2.LaunchPlan]:
    """What `pyflyte package` makes of the workflows: every launch plan, by its name."""
    folder = tmp_path_factory.mktemp("package")
    recipe = folder / "mine.yaml"
    recipe.write_text(
        yaml.safe_dump(RECIPE | {"schedule": {"continue_training": "30 1 * * *", "notify": ["me@here.org"]}})
    )
    pyflyte = Path(sys.executable).with_name("pyflyte")
    command = [pyflyte, "--pkgs", "workflows", "package", "--source", ".", "--output", folder / "all.tgz", "--force", "--version", "v1"]  # fmt: skip
    done = subprocess.run(
        [str(word) for word in command],
        cwd=ROOT,
        env=os.environ | {"BATON_CONTINUOUS": str(recipe)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = {}
    with tarfile.open(folder / "all.tgz") as package:
        for member in package.getmembers():
            if re.search(r"_3\.pb$", member.name):  # 3: launch plans
                stream = package.extractfile(member)
                assert stream
                plan = launch_plan_pb2.LaunchPlan.FromString(stream.read())
                found[plan.id.name] = plan
    return found


def test_every_plan_is_in_the_package(packaged: dict[str, launch_plan_pb2.LaunchPlan]) -> None:
    assert {"nightly", "weekly"} <= packaged.keys()
    assert {plan.id.version for plan in packaged.values()} == {"v1"}


@pytest.mark.parametrize(
    ("name", "cron", "workflow"),
    [
        ("nightly", "30 1 * * *", "workflows.continuous.continue_training"),
        ("weekly", "0 4 * * 0", "workflows.continuous.refresh_rl"),
    ],
)
def test_a_plan_says_what_runs_when_alone_and_who_is_told(
    packaged: dict[str, launch_plan_pb2.LaunchPlan], name: str, cron: str, workflow: str
) -> None:
    plan = packaged[name].spec
    assert plan.workflow_id.name == workflow
    assert plan.entity_metadata.schedule.cron_schedule.schedule == cron
    assert plan.concurrency_policy.max == 1
    (told,) = plan.entity_metadata.notifications
    assert list(told.email.recipients_email) == ["me@here.org"]


@pytest.mark.parametrize("name", ["nightly", "weekly"])
def test_a_plan_s_recipe_is_fixed(packaged: dict[str, launch_plan_pb2.LaunchPlan], name: str) -> None:
    fixed = Literal.from_flyte_idl(packaged[name].spec.fixed_inputs.literals["recipe"])
    recipe = TypeEngine.to_python_value(FlyteContextManager.current_context(), fixed, ContinuousRecipe)
    assert recipe.schedule.continue_training == "30 1 * * *"


@pytest.mark.parametrize("plan", launch_plans.PLANS, ids=lambda plan: str(plan.name))
def test_a_plan_runs_on_the_shipped_recipe(plan: LaunchPlan) -> None:
    assert plan.saved_inputs["recipe"] == ContinuousRecipe.model_validate(RECIPE)


def version(**environment: str) -> str:
    command = [sys.executable, "-m", "workflows.version"]
    done = subprocess.run(command, cwd=ROOT, env=os.environ | environment, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_a_version_is_made_of_the_code_and_the_recipe(tmp_path: Path) -> None:
    other = tmp_path / "other.yaml"
    other.write_text(yaml.safe_dump(RECIPE | {"grow": {"replay": 0.1}}))
    ours, theirs = version(), version(BATON_CONTINUOUS=str(other))
    assert ours == version()
    assert ours != theirs
    assert ours.rpartition("-")[0] == theirs.rpartition("-")[0]
