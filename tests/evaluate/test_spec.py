"""Validation of the evaluation spec."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from baton.tasks.evaluate.spec import EvaluateSpec, EvaluatorSpec
from baton.tasks.rewards.spec import RewardSpec

SHOP = Path(__file__).parents[1] / "environments" / "shop.py"
SUMS = {"data": "sums", "rewards": ["match"]}


def test_an_evaluator_without_think_end_is_identified_as_before_there_was_one() -> None:
    tasks = EvaluatorSpec(lm_eval=["arc_easy"])
    assert "think_end" not in tasks.identity()
    assert tasks.model_copy(update={"think_end": ""}).identity()["think_end"] == ""
    rows = EvaluatorSpec(data="sums", rewards=[RewardSpec.model_validate({"format": {"tags": ["think", "answer"]}})])
    assert rows.problems() == []
    (looks_at_it,) = rows.model_copy(update={"think_end": "</think>"}).problems()
    assert "the reward format reads the section that this text ends" in str(looks_at_it)
    (nothing,) = rows.model_copy(update={"think_end": ""}).problems()
    assert nothing.path == "think_end"


def test_an_evaluator_without_training_rows_is_identified_as_before_there_were_some() -> None:
    sums = EvaluatorSpec.model_validate(SUMS)
    assert "train_prompts" not in sums.identity()
    assert sums.model_copy(update={"train_prompts": 64}).identity()["train_prompts"] == 64
    (refused,) = EvaluatorSpec(lm_eval=["arc_easy"], train_prompts=64).problems()
    assert refused.path == "train_prompts"


def test_bits_per_byte_alone_are_an_evaluation_and_nothing_is_none() -> None:
    spec = EvaluateSpec.model_validate({"bits_per_byte": {}})
    assert spec.bits_per_byte is not None and spec.evaluators() == {} and not spec.problems()
    assert EvaluateSpec().problems()


def test_an_evaluator_samples_the_models_own_distribution_on_at_least_500_rows() -> None:
    sums = EvaluateSpec.model_validate({"sums": SUMS}).evaluators()["sums"]
    assert (sums.temperature, sums.top_p) == (1.0, 1.0)
    assert sums.prompts >= 500


def test_the_sets_are_those_that_evaluators_ask_each_once() -> None:
    spec = EvaluateSpec.model_validate({"b": SUMS, "a": SUMS, "c": SUMS | {"data": "chat"}, "d": {"lm_eval": ["arc"]}})
    assert spec.sets() == ["chat", "sums"]
    assert list(spec.evaluators()) == ["b", "a", "c", "d"]


def test_the_names_of_metrics_are_known_before_it_runs() -> None:
    sums = SUMS | {"samples": 4, "pass_at": [4]}
    spec = EvaluateSpec.model_validate({"bits_per_byte": {}, "sums": sums, "tasks": {"lm_eval": ["arc"]}})
    assert spec.metrics() == ["bits_per_byte", "sums.match", "sums.distinct", "sums.pass@4"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"prompts": 0},
        {"prompts": "many"},
        {"temperature": -1},
        {"temperature": 2.5},
        {"top_p": 0},
        {"top_p": 1.1},
        {"max_new_tokens": 0},
        {"samples": 0},
        {"beams": 4},
    ],
)
def test_invalid_evaluators(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        EvaluateSpec.model_validate({"sums": SUMS | wrong})


@pytest.mark.parametrize(
    ("evaluator", "paths"),
    [
        (SUMS | {"limit": 50, "few_shot": 5}, ["few_shot", "limit"]),
        (SUMS | {"max_turns": 3}, ["max_turns"]),
        ({"lm_eval": ["arc"], "max_new_tokens": 2048, "temperature": 0.6}, ["temperature", "max_new_tokens"]),
        ({"lm_eval": ["arc"], "limit": 50}, []),
    ],
)
def test_a_field_that_would_have_no_effect_is_refused(evaluator: dict[str, Any], paths: list[str]) -> None:
    problems = EvaluateSpec.model_validate({"it": evaluator}).problems()
    assert [problem.path for problem in problems if "unset" in problem.allowed] == [f"it.{path}" for path in paths]


@pytest.mark.parametrize("wrong", [{"seed": -1}, {"bits_per_byte": {"held_out_bytes": 0}}, {"sums": 7}])
def test_invalid_evaluations(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        EvaluateSpec.model_validate(wrong)


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        ({"sums": {}}, "sums"),
        ({"sums": {"data": "sums"}}, "sums.rewards"),
        ({"sums": SUMS | {"samples": 2, "pass_at": [1, 4]}}, "sums.pass_at"),
        ({"sums": SUMS | {"pass_at": [0]}}, "sums.pass_at"),
        ({"sums": SUMS | {"rewards": ["match", "match"]}}, "sums.rewards"),
        ({"sums": SUMS | {"lm_eval": ["arc_easy"]}}, "sums"),
        ({"tasks": {"lm_eval": ["nowhere.yaml"]}}, "tasks.lm_eval"),
        ({"tasks": {"lm_eval": ["arc_easy"], "rewards": ["match"]}}, "tasks.rewards"),
        ({"old": SUMS}, "old"),
        ({"two.parts": SUMS}, "two.parts"),
        ({"bits_per_byte": None}, ""),
    ],
)
def test_an_invalid_evaluator_is_a_problem_at_its_field(spec: dict[str, Any], path: str) -> None:
    problems = EvaluateSpec.model_validate(spec).problems()
    assert [problem.path.startswith(path) for problem in problems] == [True]


def test_the_source_of_rewards_and_the_files_of_tasks_travel_in_the_spec(tmp_path: Path) -> None:
    (tmp_path / "sums.py").write_text("def right(completions, **kwargs):\n    return [1.0] * len(completions)\n")
    task = "task: mine\ninclude: base.yaml\nprocess_results: !function utils.score\n"
    base = "dataset_path: json\ndataset_kwargs:\n  data_files:\n    test: data/test.jsonl\n"
    (tmp_path / "mine" / "data").mkdir(parents=True)
    for name, text in (("mine.yaml", task), ("base.yaml", base), ("utils.py", "score = 1\n")):
        (tmp_path / "mine" / name).write_text(text)
    (tmp_path / "mine" / "data" / "test.jsonl").write_text("{}\n")
    spec = EvaluateSpec.model_validate(
        {
            "sums": SUMS | {"rewards": [f"{tmp_path}/sums.py:right"]},
            "tasks": {"lm_eval": ["arc_easy", f"{tmp_path}/mine/mine.yaml"]},
        }
    ).pinned()
    (reward,) = spec.evaluators()["sums"].rewards
    assert reward.function and reward.function.source and "return [1.0]" in reward.function.source["sums.py"]
    tasks = spec.evaluators()["tasks"]
    assert tasks.lm_eval == ["arc_easy", "mine.yaml"]
    assert tasks.task_files and set(tasks.task_files) == {"mine.yaml", "base.yaml", "utils.py", "data/test.jsonl"}
    assert EvaluateSpec.model_validate(spec.model_dump(mode="json")) == spec
    assert not spec.problems()


def test_environments_change_no_earlier_result() -> None:
    """The fields were added when results existed already. A call that exceeds its time limit results in another turn of
    the model."""
    plain = EvaluateSpec.model_validate({"sums": SUMS}).identity()["sums"]
    played = EvaluateSpec.model_validate({"sums": SUMS | {"environment": f"{SHOP}:Shop", "tool_timeout_s": 3.0}})

    assert not {"environment", "tools", "max_turns", "tool_timeout_s"} & plain.keys()
    assert played.identity()["sums"].keys() - plain.keys() == {"environment", "tool_timeout_s"}


def test_an_environment_may_have_the_reward_and_measures_turns() -> None:
    spec = EvaluateSpec.model_validate({"shop": {"data": "customers", "environment": f"{SHOP}:Shop"}})
    turns = [f"shop.{name}" for name in ("turns", "tool_calls", "tool_errors", "environments_lost")]
    assert not spec.problems()
    assert spec.metrics() == ["shop.Shop", "shop.distinct", *turns]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"data": None, "lm_eval": ["arc"], "tools": [f"{SHOP}:add"]}, "no environment or tools"),
        ({"tools": [f"{SHOP}:add"]}, "at least one reward"),
        ({"environment": f"{SHOP}:Shops"}, "a function of"),
        ({"environment": f"{SHOP}:Shop", "rewards": [{"match": {}, "name": "turns"}]}, "another `name`"),
    ],
)
def test_what_cannot_be_played_is_refused(fields: dict[str, Any], words: str) -> None:
    spec = EvaluateSpec.model_validate({"shop": {"data": "customers"} | fields})
    assert words in "\n".join(map(str, spec.problems()))
