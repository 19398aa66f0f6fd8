"""The DAG as data, and its use by the run and the plan."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from baton.workflows.dag.calls import calls
from baton.workflows.plan.dry_run import steps_of
from baton.workflows.recipe import Recipe
from tests.shipped import shipped
from tests.source import ROOT

LAPTOP = shipped("laptop.yaml")
SEEDS = LAPTOP | {"seeds": 2, "audit": None}


def titles(**changes: Any) -> list[str]:
    return [call.title for call in calls(Recipe.model_validate(LAPTOP | changes))]


def test_the_laptop_s_stages_in_order() -> None:
    assert titles() == [
        "corpus",
        "rows-statements",
        "rewards",
        "tokenizer",
        "shards",
        "pretrain",
        "convert",
        "audit",
        "evaluate-base",
        "sft",
        "evaluate-sft",
        "dpo",
        "evaluate-dpo",
        "grpo",
        "evaluate-grpo",
        "serve",
        "publish",
        "report",
    ]


def test_each_title_is_another_and_inputs_come_from_earlier_calls() -> None:
    more = [LAPTOP["corpus"] | {"held_out": share} for share in (0.02, 0.03)]
    dag = calls(Recipe.model_validate(SEEDS | {"more_corpora": more}))
    for number, call in enumerate(dag):
        earlier = {each.title for each in dag[:number]}
        assert call.title not in earlier
        assert call.titles() | {*call.after} <= earlier


def test_further_corpora_and_their_shards_are_numbered() -> None:
    found = titles(more_corpora=[LAPTOP["corpus"] | {"held_out": 0.02}])
    assert {"corpus", "corpus-2", "shards", "shards-2"} <= {*found}


def test_a_metric_of_lm_eval_is_checked_before_anything_is_tuned() -> None:
    """The metric's name is known from the base model's evaluation; the names of other metrics are known before the
    run."""
    measured = LAPTOP["evaluate"] | {"exam": {"lm_eval": ["piqa"]}}
    dag = calls(
        Recipe.model_validate(LAPTOP | {"evaluate": measured, "publish": LAPTOP["publish"] | {"best": "exam.piqa.acc"}})
    )
    found = [call.title for call in dag]
    assert found[found.index("evaluate-base") :][:3] == ["evaluate-base", "check-best", "sft"]
    assert {call.title for call in dag if "check-best" in call.after} == {"sft", "dpo", "grpo"}
    assert "check-best" not in titles(publish=LAPTOP["publish"] | {"best": "statements.all_checks"})


def test_a_seed_repeats_the_post_training_and_its_evaluations() -> None:
    found = [call.title for call in calls(Recipe.model_validate(SEEDS))]
    assert found[found.index("grpo seed 1") :][:2] == ["grpo seed 1", "evaluate-grpo-seed1"]


@pytest.mark.parametrize("recipe", [LAPTOP, SEEDS], ids=["laptop", "two seeds"])
def test_the_plan_has_the_titles_of_the_run(
    recipe: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BATON_HOME", str(tmp_path))
    found = Recipe.model_validate(recipe)
    assert [step.name for step in steps_of([calls(found.pinned())])] == [call.title for call in calls(found)]


def test_it_opens_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = Recipe.model_validate(LAPTOP)
    looked_up: list[Any] = []
    for name in ("open", "stat", "listdir", "scandir"):
        monkeypatch.setattr(os, name, lambda path, *rest, **more: looked_up.append(path))
    monkeypatch.setattr("builtins.open", lambda path, *rest, **more: looked_up.append(path))
    found = calls(recipe)
    monkeypatch.undo()
    assert found and not looked_up


def test_it_needs_no_flyte() -> None:
    program = "import sys, baton.workflows.dag.calls; sys.exit('flytekit' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)
