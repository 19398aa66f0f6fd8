"""The code example: HumanEval's own solutions, and the shipped recipes with smaller sizes."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from baton.infra.sandbox.sandbox import unusable
from baton.tasks.core.manifest import read_manifest, write_manifest
from baton.tasks.rewards.scorer import Scorer
from baton.tasks.rewards.spec import RewardSpec
from baton.tasks.user_code.functions import Function
from tests.posttrain.tiny import metrics, start, tiny_model, tiny_rows, write_job
from tests.shipped import shipped
from tests.source import ROOT

if problem := unusable("bubblewrap"):
    pytest.skip(f"bubblewrap: {problem}", allow_module_level=True)

FOLDER = ROOT / "workflows/recipes/code"
LARGE = {"wall_s": 60.0, "cpu_s": 60}  # limits for a machine that is busy with other tests


def recipe(name: str) -> dict[str, Any]:
    return shipped(f"code/{name}")


@pytest.fixture
def problems(tmp_path: Path) -> list[dict[str, Any]]:
    return list(Function(name=f"{FOLDER / 'problems.py'}:humaneval").pinned().load(tmp_path)())


@pytest.mark.long
@pytest.mark.parametrize(("damage", "solved"), [("", 164), ("    return NotImplemented\n", 0)])
def test_of_humaneval_s_own_solutions_all_pass_and_damaged_none(
    problems: list[dict[str, Any]], damage: str, solved: int
) -> None:
    (reward,) = recipe("humaneval.yaml")["evaluate"]["humaneval"]["rewards"]
    reward["code_tests"] |= LARGE | {"workers": 2}

    with Scorer([RewardSpec.model_validate(reward)]) as scorer:
        scores = scorer.score(
            [problem["prompt"] for problem in problems],
            [damage + problem["completion"] for problem in problems],
            {"tests": [problem["tests"] for problem in problems]},
        )

    assert (len(problems), sum(filter(None, scores.rewards["solved"]))) == (164, solved)


def doubles() -> Iterator[dict[str, Any]]:
    """Return rows like those that MBPP's function yields, without the hub."""
    for number in range(2, 30):
        asked = f"Write times{number}(x)."
        answer = f"def times{number}(x): return {number} * x"
        yield {
            "prompt": [{"role": "user", "content": asked}],
            "completion": [{"role": "assistant", "content": answer}],
            "tests": [f"assert times{number}({x}) == {number * x}" for x in (1, 5)],
        }


@pytest.mark.long
@pytest.mark.usefixtures("vllm")
def test_grpo_is_rewarded_by_tests(tmp_path: Path) -> None:
    (spec,) = (each["grpo"] for each in recipe("grpo.yaml")["post_training"])
    spec |= {"steps": 2, "batch_size": 8, "layout": {"micro_batch": 8}, "generations": 4, "warmup_steps": 1}
    spec |= {"max_prompt_tokens": 128, "max_new_tokens": 16, "rewards": [small(each) for each in spec["rewards"]]}
    rows = tiny_rows(tmp_path / "rows", list(doubles()), "prompt_completion")
    job = write_job(tmp_path / "grpo", "grpo", spec, model=tiny_model(tmp_path / "model", turns=True), rows=rows)

    assert start("baton.tasks.posttrain.engine", job).wait() == 0, (job / "log.txt").read_text()[-5000:]

    own = {
        line.split()[0]: line.split()[1:3] for line in (job / "log.txt").read_text().splitlines() if "solved" in line
    }
    assert own["solved"] == ["1", "0"]  # the programs of the rows themselves, and those of other rows
    assert [line["met_a_limit"] for line in metrics(job) if "solved" in line] == [0, 0]


@pytest.mark.long
@pytest.mark.usefixtures("vllm")
def test_a_model_is_evaluated_on_humaneval(tmp_path: Path, problems: list[dict[str, Any]]) -> None:
    evaluator = recipe("humaneval.yaml")["evaluate"]["humaneval"]
    evaluator |= {"prompts": 8, "samples": 2, "pass_at": [1, 2], "max_new_tokens": 16}
    evaluator["rewards"] = [small(each) for each in evaluator["rewards"]]
    rows = tiny_rows(tmp_path / "rows", problems, "prompt_completion")
    (rows / "train.jsonl").rename(rows / "held_out.jsonl")
    (rows / "train.jsonl").touch()
    write_manifest(rows, "rows", read_manifest(rows).facts, {}, {})
    job = write_job(
        tmp_path / "evaluate",
        "evaluate",
        {"humaneval": evaluator},
        **{"model": tiny_model(tmp_path / "model"), "rows.0": rows},
    )

    assert start("baton.tasks.evaluate.evaluate", job).wait() == 0, (job / "log.txt").read_text()[-5000:]

    report = json.loads((job / "output/report.json").read_text())
    assert report["ceiling"]["humaneval.solved"] == 1
    values = {name: metric["value"] for name, metric in report["metrics"].items() if name != "humaneval.distinct"}
    assert values == {"humaneval.solved": 0, "humaneval.pass@1": 0, "humaneval.pass@2": 0}


def small(reward: dict[str, Any]) -> dict[str, Any]:
    return reward | {"code_tests": reward["code_tests"] | LARGE | {"workers": 2}}
