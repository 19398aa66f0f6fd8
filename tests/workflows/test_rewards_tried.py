"""A recipe's rewards are tried once the rows are made, before any training."""

import json
from pathlib import Path
from typing import Any

import pytest

from baton.tasks.posttrain.methods.dpo.spec import DPOSpec
from baton.tasks.posttrain.methods.grpo.spec import GRPOSpec
from baton.workflows.dag.calls import calls
from baton.workflows.plan.dry_run import PlannedStage, steps_of
from baton.workflows.recipe import Recipe
from tests.posttrain.tiny import tiny_model

JUDGE = {"judge": {"model": "judge", "rubric": "Kind."}, "name": "kind"}
ROWS = [{"prompt": f"{n}+1=", "completion": str(n + 1)} for n in range(40)]


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BATON_HOME", str(tmp_path / "home"))
    tiny_model(tmp_path / "model", turns=True)
    Path("sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))


def steps(*tunings: dict[str, Any], **more: Any) -> tuple[dict[str, PlannedStage], list[str]]:
    rows = {"path": "sums.jsonl", "held_out": 0.2}
    recipe = Recipe.model_validate(
        {"start_from": {"model": "model"}, "data": {"sums": rows}, "post_training": list(tunings)} | more
    )
    return {step.name: step for step in steps_of([calls(recipe.pinned())])}, [call.title for call in calls(recipe)]


def grpo(*rewards: Any, **more: Any) -> dict[str, Any]:
    return {"grpo": {"data": "sums", "rewards": [*rewards], "max_new_tokens": 8, **more}}


def test_they_are_tried_before_the_model_is_loaded_and_not_again() -> None:
    pairs = {"dpo": {"data": "sums", "pairs": {"rewards": ["match"]}, "max_new_tokens": 8}}
    evaluate = {"sums": {"data": "sums", "rewards": ["match", JUDGE], "max_new_tokens": 8}}
    found, titles = steps(pairs, grpo("similarity", JUDGE), evaluate=evaluate)
    assert [*found].index("rewards") < [*found].index("load_hf") and "rewards" in titles
    tried = {one["path"]: one for one in found["rewards"].spec.identity()["lists"]}
    assert [*tried] == ["post_training.0.dpo.pairs.rewards", "post_training.1.grpo.rewards", "evaluate.sums.rewards"]
    assert [one["required"] for one in tried.values()] == [True, True, False]
    assert [one["split"] for one in tried.values()] == ["train", "train", "held_out"]
    assert all(reward["judge"] is None for one in tried.values() for reward in one["rewards"])
    of_dpo, of_grpo = found["dpo"].spec, found["grpo"].spec
    assert isinstance(of_dpo, DPOSpec) and of_dpo.pairs and of_dpo.pairs.rewards_tried
    assert isinstance(of_grpo, GRPOSpec) and of_grpo.rewards_tried


def test_whether_they_were_tried_changes_no_result() -> None:
    spec = GRPOSpec.model_validate(grpo("match")["grpo"])
    assert spec.model_copy(update={"rewards_tried": True}).identity() == spec.identity()


@pytest.mark.parametrize("rewards", [[JUDGE], [{"match": {}, "environment": ["KEY"]}]])
def test_without_one_that_can_be_tried_early_there_is_no_such_stage(rewards: list[Any]) -> None:
    found, titles = steps(grpo(*rewards))
    assert "rewards" not in found and "rewards" not in titles


def test_what_a_placed_stage_uses_is_tried_there() -> None:
    placement = {"accelerators": ["H100:1"], "max_price_per_run": 1000}
    found, titles = steps(grpo("match", placement=placement))
    assert "rewards" not in found and "rewards" not in titles
    spec = found["grpo"].spec
    assert isinstance(spec, GRPOSpec) and not spec.rewards_tried
