"""The GRPO engine as a subprocess, on a tiny model after a short SFT."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from baton.tasks.core.job import StageError, open_job
from baton.tasks.core.manifest import read_manifest, verify
from baton.tasks.posttrain.methods.grpo.spec import GRPOSpec
from baton.tasks.posttrain.methods.grpo.trainer import equal_groups, notices, reward_function, train
from baton.tasks.rewards.scorer import Scores
from baton.tasks.rewards.spec import RewardSpec
from tests.posttrain.tiny import (
    complete_checkpoints,
    flip_a_bit,
    metrics,
    repeated_words,
    reward,
    start,
    tiny_model,
    tiny_rows,
    wait_for_step,
    without_times,
    write_job,
)

SPEC = {
    "data": "twice",
    "steps": 6,
    "batch_size": 32,
    "layout": {"micro_batch": 16},
    "generations": 4,
    "warmup_steps": 1,
    "learning_rate": 0.003,
    "beta": 0.1,
    "max_new_tokens": 16,
    "checkpoint_every": 2,
}
SFT = {
    "data": "twice",
    "steps": 100,
    "batch_size": 32,
    "learning_rate": 0.01,
    "checkpoint_every": 100,
    "max_new_tokens": 16,
}


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    rewards = [reward(tmp_path_factory.mktemp("rewards")), {"diversity": {}, "weight": 0.5}]
    return SPEC | {"rewards": rewards}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A model that is sometimes right, since without rewards it would learn nothing."""
    root = tmp_path_factory.mktemp("tiny")
    rows = tiny_rows(root / "rows", repeated_words(), "prompt_completion")
    sft = write_job(root / "sft", "sft", SFT, model=tiny_model(root / "model"), rows=rows)
    assert start("baton.tasks.posttrain.engine", sft).wait() == 0, (sft / "log.txt").read_text()
    return {"model": sft / "output", "rows": rows}


@pytest.fixture(scope="module")
def tuned(vllm: None, inputs: dict[str, Path], spec: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    job = write_job(tmp_path_factory.mktemp("grpo") / "job", "grpo", spec, **inputs)
    assert start("baton.tasks.posttrain.engine", job).wait() == 0, (job / "log.txt").read_text()
    return job


def test_the_output_is_a_complete_model_with_other_weights(tuned: Path, inputs: dict[str, Path]) -> None:
    assert verify(tuned / "output").facts == read_manifest(inputs["model"]).facts | {"label": "grpo"}
    before, after = (load_file(path / "model.safetensors") for path in (inputs["model"], tuned / "output"))
    assert before.keys() == after.keys()
    assert not all(torch.equal(before[name], after[name]) for name in before)


def test_the_rollouts_come_from_the_weights_that_are_trained(tuned: Path) -> None:
    """At this learning rate the policy changes a lot (see the KL), so stale weights in the engine would be detected."""
    lines = metrics(tuned)[1:]

    assert lines[-1]["kl"] > 0.01
    assert all(1.0 <= line["rollout_mismatch"] < 1.05 for line in lines)


@pytest.mark.usefixtures("vllm")
def test_an_adapter_is_merged_into_the_engine_s_weights_and_into_the_output(
    inputs: dict[str, Path], spec: dict[str, Any], tmp_path: Path
) -> None:
    adapted = spec | {"adapter": {"lora": {"rank": 8}}, "learning_rate": 0.02}
    job = write_job(tmp_path / "job", "grpo", adapted, **inputs)

    assert start("baton.tasks.posttrain.engine", job).wait() == 0, (job / "log.txt").read_text()

    lines = metrics(job)[1:]
    assert lines[0]["kl"] < 0.001 and lines[-1]["kl"] > 0.01
    assert all(1.0 <= line["rollout_mismatch"] < 1.05 for line in lines)
    before, after = (load_file(path / "model.safetensors") for path in (inputs["model"], job / "output"))
    assert {name for name in before if not torch.equal(before[name], after[name])} == {
        name for name in before if "proj" in name
    }


@pytest.mark.usefixtures("vllm")
def test_a_drift_above_its_maximum_ends_the_stage_with_the_worst_tokens(
    inputs: dict[str, Path], spec: dict[str, Any], tmp_path: Path
) -> None:
    """In bf16, trainer and engine never agree to the last bit."""
    job = write_job(tmp_path / "job", "grpo", spec | {"drift": {"max": 1.0}}, **inputs)

    assert start("baton.tasks.posttrain.engine", job).wait() == 1, (job / "log.txt").read_text()

    error = json.loads((job / "result.json").read_text())
    assert error["kind"] == "StageError" and "above drift.max 1." in error["error"]
    assert "worst sequences" in error["error"] and "worst tokens" in error["error"]


def test_every_step_says_what_was_rolled_out_and_each_reward_is_a_metric(tuned: Path) -> None:
    first, *lines = metrics(tuned)

    assert (first["step"], first["rows"], first["rows_too_long"]) == (0, 48, 0)
    assert [line["step"] for line in lines] == list(range(1, 7))
    for line in lines:
        assert {"reward_std", "loss", "entropy", "completion_length", "cut_off"} <= line.keys()
        assert 0 < line["diversity"] <= 1
        assert line["right"] / 2 <= line["reward"] <= line["right"]  # diversity subtracts at most half of it
    assert any(line["reward"] > 0 for line in lines)


def test_killed_and_its_newest_checkpoint_damaged_it_makes_the_same_model(
    tuned: Path, inputs: dict[str, Path], spec: dict[str, Any], tmp_path: Path
) -> None:
    job = write_job(tmp_path / "job", "grpo", spec, **inputs)
    engine = start("baton.tasks.posttrain.engine", job)
    wait_for_step(job, engine, 5)
    engine.kill()
    engine.wait()
    before, newest = complete_checkpoints(job)
    flip_a_bit(newest / "rewards.json")

    assert start("baton.tasks.posttrain.engine", job).wait() == 0, (job / "log.txt").read_text()

    output = (job / "log.txt").read_text()
    assert f"{newest} is damaged: rewards.json was changed" in output and f"continuing from {before}" in output
    assert json.loads((job / "result.json").read_text()) == json.loads((tuned / "result.json").read_text())
    assert without_times(job) == without_times(tuned)


@pytest.mark.usefixtures("vllm")
def test_prompts_may_be_messages_of_a_model_that_has_never_seen_any(
    inputs: dict[str, Path], spec: dict[str, Any], tmp_path: Path
) -> None:
    """The rows suffice for half a step, so they are repeated."""
    asked = [
        {"prompt": [{"role": "user", "content": row["prompt"]}], "completion": assistant(row["completion"])}
        for row in repeated_words(8)
    ]
    rows = tiny_rows(tmp_path / "rows", asked, "prompt_completion")
    job = write_job(tmp_path / "job", "grpo", spec | {"steps": 2}, model=inputs["model"], rows=rows)

    assert start("baton.tasks.posttrain.engine", job).wait() == 0, (job / "log.txt").read_text()

    assert metrics(job)[0]["rows"] == 8 and len(metrics(job)) == 3
    assert (job / "output" / "chat_template.jinja").exists()


def assistant(text: str) -> list[dict[str, str]]:
    return [{"role": "assistant", "content": text}]


class Constant:
    """A scorer with constant rewards."""

    def __init__(self, value: float | None, metric: str = "words") -> None:
        self.value, self.metric = value, metric
        self.asked: dict[str, Any] = {}

    def score(self, prompts: list[Any], completions: list[Any], columns: dict[str, Any], **more: Any) -> Scores:
        self.asked = {"prompts": prompts, "completions": completions, "columns": columns, **more}
        values = [self.value] * len(prompts)
        return Scores({"kind": values}, values, {self.metric: 3.0}, {})


class State:
    global_step, max_steps, epoch = 4, 10, None


def test_rewards_are_given_the_rows_that_were_asked_as_trl_gives_them() -> None:
    scorer = Constant(0.5)
    logged: dict[str, float] = {}
    rows = [{"prompt": "a", "answer": 1, "tools": []}, {"prompt": [{"role": "user", "content": "b"}], "answer": 2}]

    worths = reward_function(scorer, rows, 2)(  # type: ignore[arg-type]
        prompts=["1", "0"],
        completions=["x", "y"],
        completion_ids=[[1], [2]],
        trainer_state=State,
        log_metric=logged.__setitem__,
    )

    assert worths == [0.5, 0.5]
    shares = {"logged/equal_groups": 1.0, "logged/without_reward": 0.0}
    assert logged == {"logged/kind": 0.5, "logged/words": 3.0, **shares}
    assert scorer.asked == {
        "prompts": [[{"role": "user", "content": "b"}], "a"],
        "completions": [assistant("x"), "y"],
        "columns": {"answer": [2, 1]},
        "begun": [],
        "completion_ids": [[1], [2]],
        "state": {"global_step": 4, "max_steps": 10, "epoch": 0},
    }


def test_groups_without_a_difference_in_reward_are_counted() -> None:
    assert equal_groups([0, 0, 0, 1, 1, 1, None, 2], 2) == 0.75
    lines: list[dict[str, float]] = [
        {"step": 0, "rows": 9},
        {"step": 1, "equal_groups": 1.0, "cut_off": 0.5},
        {"step": 2, "equal_groups": 0.9},
    ]
    spec = GRPOSpec(steps=40, batch_size=64, generations=8, rewards=[RewardSpec.model_validate("match")])
    (few, _), (cut, _) = found = list(notices(lines, spec, spec.limits(512)))
    assert not any(learned_nothing for _, learned_nothing in found)
    assert few.startswith("only 16 of 320 groups of 8 completions had different rewards")
    assert cut.startswith("50% of the completions were cut off at 256 tokens")
    assert not list(notices([{"step": 1, "equal_groups": 0.5, "cut_off": 0.1}], spec, spec.limits(512)))


def test_completions_without_a_reward_are_counted_and_reported_where_nothing_was_learned_for_them() -> None:
    class Partial(Constant):
        def score(self, prompts: list[Any], *given: Any, **more: Any) -> Scores:
            return Scores({}, [1.0, None, None, None], {}, {})

    logged: dict[str, float] = {}
    reward_function(Partial(None), [{"prompt": "a"}], 4)(  # type: ignore[arg-type]
        ["0"] * 4, ["x"] * 4, [[1]] * 4, State, logged.__setitem__
    )
    assert logged == {"logged/equal_groups": 1.0, "logged/without_reward": 0.75}

    spec = GRPOSpec(steps=1, batch_size=4, generations=4, rewards=[RewardSpec.model_validate("match")])
    ((notice, learned_nothing),) = notices(
        [{"step": 1, "equal_groups": 1.0, "without_reward": 0.75}], spec, spec.limits(512)
    )
    assert learned_nothing
    assert "75% of the completions had no reward (None, or a lost environment); return a number" in notice
    assert "solves sometimes" not in notice


def test_a_step_to_which_no_reward_applies_is_an_error() -> None:
    reward = reward_function(Constant(None), [{"prompt": "a"}], 1)  # type: ignore[arg-type]

    with pytest.raises(StageError, match="step 5: no reward applies to any of 1 completions"):
        reward(prompts=["0"], completions=["x"], completion_ids=[[1]], trainer_state=State, log_metric=print)


def test_a_metric_of_a_reward_that_is_called_as_one_of_the_training_is_an_error() -> None:
    reward = reward_function(Constant(0.5, metric="loss"), [{"prompt": "a"}], 1)  # type: ignore[arg-type]

    with pytest.raises(StageError, match=r"log_metric\(loss\): training or a reward has a metric of this name"):
        reward(prompts=["0"], completions=["x"], completion_ids=[[1]], trainer_state=State, log_metric=print)


def test_a_reward_that_prefers_wrong_answers_ends_the_stage_with_a_table(
    inputs: dict[str, Path], tmp_path: Path
) -> None:
    spec = SPEC | {"rewards": [reward(tmp_path / "rewards", name="wrong")]}
    job = write_job(tmp_path / "job", "grpo", spec, **inputs)

    with pytest.raises(StageError, match=r"(?s)own answers +of other rows.*\nwrong +-1 +-0\.\d+ +48  not higher"):
        train(open_job(job))
    assert metrics(job) == []


@pytest.mark.parametrize("name", ["kl", "step"])
def test_a_reward_that_is_called_as_a_metric_of_the_training_is_refused(
    inputs: dict[str, Path], tmp_path: Path, name: str
) -> None:
    spec = SPEC | {"rewards": [reward(tmp_path / "rewards", name="right") | {"name": name}]}

    with pytest.raises(StageError, match=f"reward {name}: training has a metric of this name; set another `name`"):
        train(open_job(write_job(tmp_path / "job", "grpo", spec, **inputs)))
