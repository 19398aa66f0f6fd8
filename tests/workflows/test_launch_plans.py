"""The launch plans as registered on a Flyte cluster."""

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

from baton import images
from baton.workflows import launch_plans
from baton.workflows.continuous_training.recipe import ContinuousRecipe
from baton.workflows.recipe.text import load
from baton.workflows.version import version
from tests.shipped import shipped
from tests.workflows.flyte_admin import admin

ROOT = Path(__file__).parents[2]
PINNED = [f"--image={image.name}=registry.invalid/{image.name}:1" for image in images.BY_FAMILY.values()]
RECIPE: dict[str, Any] = shipped("continuous.yaml")


def register(
    folder: Path, store: str, *, version: str | None = None, **recipe: Any
) -> tuple[Any, subprocess.CompletedProcess[str]]:
    """Run `pyflyte register` for a user's recipe. Return the service with its requests, and the ended process."""
    path = folder / "mine.yaml"
    path.write_text(yaml.safe_dump(RECIPE | recipe))
    mine = os.environ | {"BATON_CONTINUOUS": str(path), "BATON_HOME": str(folder)}
    named = subprocess.run(
        [sys.executable, "-m", "baton", "version"],
        cwd=ROOT,
        env=mine,
        capture_output=True,
        text=True,
        check=True,
    )
    copy = ["--copy", "none"] if version is None else []
    words = [*copy, "--project", "p", "--version", named.stdout.strip() if version is None else version, *PINNED]
    words += ["--env", f"MLFLOW_TRACKING_URI={store}"]
    with admin() as (service, address):
        done = subprocess.run(
            [str(Path(sys.executable).with_name("pyflyte")), "register", "workflows", *words],
            cwd=ROOT, env=mine | {"FLYTE_PLATFORM_URL": address, "FLYTE_PLATFORM_INSECURE": "true"},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    return service, done


@pytest.fixture(scope="module")
def registration(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, str]:
    """The service with the objects of a valid recipe, and the output of the registration."""
    schedule = {"continue_training": "30 1 * * *", "notify": ["me@here.org"]}
    service, done = register(tmp_path_factory.mktemp("recipe"), "http://mlflow.example", schedule=schedule)
    assert done.returncode == 0, done.stdout + done.stderr
    return service, done.stderr


@pytest.fixture(scope="module")
def registered(registration: tuple[Any, str]) -> dict[str, Any]:
    """The launch plans by name."""
    service, _ = registration
    assert {each.id.name for each in service.workflows} >= {"baton.workflows.continuous.continue_training"}
    assert {each.id.name for each in service.tasks} >= {
        "baton.tasks.promote.task.promote",
        "baton.workflows.continuous.ingest",
    }
    return {each.id.name: each for each in service.launch_plans}


def test_who_notifies_people_is_reported(registration: tuple[Any, str]) -> None:
    _, output = registration
    assert "schedule.notify: me@here.org: Flyte's admin sends emails only if an email service is set up" in output
    assert "MLFLOW_TRACKING_URI is not set" not in output


@pytest.mark.long
def test_a_recipe_that_pods_could_not_run_is_not_registered(tmp_path: Path) -> None:
    pretrain = RECIPE["pretrain"] | {"layout": {"nodes": 2, "micro_batch": 8}}
    service, done = register(tmp_path, "sqlite:///runs.db", pretrain=pretrain)
    assert done.returncode, done.stdout + done.stderr
    assert "the recipe has 2 problems" in done.stderr and "Traceback" not in done.stderr
    assert "pretrain.layout.nodes: 2" in done.stderr and "MLFLOW_TRACKING_URI: 'sqlite:///runs.db'" in done.stderr
    assert not [*service.tasks, *service.launch_plans]


def test_every_plan_is_registered_under_the_version(registered: dict[str, Any]) -> None:
    assert {"nightly", "weekly"} <= registered.keys()
    (name,) = {plan.id.version for plan in registered.values()}
    commit, _, recipe = name.partition("-")
    assert len(commit) == 12 and recipe


@pytest.mark.parametrize(
    ("name", "cron", "workflow"),
    [
        ("nightly", "30 1 * * *", "baton.workflows.continuous.continue_training"),
        ("weekly", "0 4 * * 0", "baton.workflows.continuous.refresh_rl"),
    ],
)
def test_a_plan_says_what_runs_when_alone_and_who_is_notified(
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
    assert plan.saved_inputs["recipe"] == load(launch_plans.DEFAULT, ContinuousRecipe.model_validate)


def test_a_version_is_made_of_the_code_and_the_recipe() -> None:
    ours, theirs = (ContinuousRecipe.model_validate(RECIPE | change) for change in ({}, {"grow": {"replay": 0.1}}))
    assert version(ours) == version(ours) != version(theirs)
    assert version(ours).rpartition("-")[0] == version(theirs).rpartition("-")[0]


def test_what_goes_into_templates_is_in_the_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flyte refuses a changed template under a known version."""
    ours = ContinuousRecipe.model_validate(RECIPE)
    found = [version(ours), version(ours, {"baton-data": "r/baton-data:1"}), version(ours, {}, ["A=1"])]
    monkeypatch.setenv("BATON_SECRETS", "TOKEN")
    assert len({*found, version(ours)}) == 4


def test_a_bucket_that_this_machine_has_no_credentials_for_is_left_to_the_pods(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(
        yaml.safe_dump(RECIPE | {"corpus": {"source": {"kind": "jsonl", "path": "s3://bucket/x"}}})
    )
    mine = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "FLYTE_"))}
    mine |= {
        "BATON_CONTINUOUS": str(tmp_path / "mine.yaml"),
        "AWS_EC2_METADATA_DISABLED": "true",
        "HOME": str(tmp_path),
    }
    done = subprocess.run(
        [sys.executable, "-m", "baton", "version"],
        cwd=ROOT,
        env=mine,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0 and len(done.stdout.split()) == 1, done.stderr
    assert "The run's first pod checks it again" in done.stderr


@pytest.mark.long
def test_a_wrong_recipe_has_no_version_and_none_is_registered(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("corpus: 3")
    mine = os.environ | {"BATON_CONTINUOUS": str(tmp_path / "mine.yaml"), "BATON_HOME": str(tmp_path)}
    python = [sys.executable, "-m", "baton", "version"]
    done = subprocess.run(python, cwd=ROOT, env=mine, capture_output=True, text=True, check=False)
    assert done.returncode and not done.stdout and "Traceback" not in done.stderr
    assert "corpus: 3" in done.stderr
    service, registered = register(tmp_path, "http://mlflow.example", version="")
    assert registered.returncode and "--version is empty" in registered.stderr + registered.stdout
    assert not [*service.tasks, *service.launch_plans]
