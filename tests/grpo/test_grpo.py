"""The GRPO engine, as its own process, on a tiny model that has seen a little SFT."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tasks.manifest import read_manifest, verify
from tests.posttrain.tiny import (
    complete_checkpoints,
    flip_a_bit,
    metrics,
    start,
    tiny_corpus,
    tiny_model,
    wait_for_step,
    without_times,
    write_job,
)

SPEC = {
    "steps": 6,
    "batch_size": 32,
    "micro_batch_size": 16,
    "generations": 4,
    "warmup_steps": 1,
    "learning_rate": 0.003,
    "max_prompt_tokens": 160,
    "checkpoint_every": 2,
}
SFT = {"steps": 300, "batch_size": 16, "micro_batch_size": 16, "learning_rate": 0.01, "checkpoint_every": 300}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A model that passes now and then: without a reward there is nothing to learn from."""
    root = tmp_path_factory.mktemp("tiny")
    corpus = tiny_corpus(root / "corpus")
    sft = write_job(root / "sft", "sft", SFT, model=tiny_model(root / "model"), corpus=corpus)
    assert start("tasks.sft.sft", sft).wait() == 0, (sft / "log.txt").read_text()
    return {"model": sft / "output", "corpus": corpus}


@pytest.fixture(scope="module")
def tuned(inputs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    job = write_job(tmp_path_factory.mktemp("grpo") / "job", "grpo", SPEC, **inputs)
    assert start("tasks.grpo.grpo", job).wait() == 0, (job / "log.txt").read_text()
    return job


def test_the_output_is_a_complete_model_with_other_weights(tuned: Path, inputs: dict[str, Path]) -> None:
    assert verify(tuned / "output").facts == read_manifest(inputs["model"]).facts | {"label": "grpo"}
    before, after = (load_file(path / "model.safetensors") for path in (inputs["model"], tuned / "output"))
    assert before.keys() == after.keys()
    assert not all(torch.equal(before[name], after[name]) for name in before)


def test_the_rollouts_come_from_the_weights_that_are_trained(tuned: Path) -> None:
    """At this learning rate the policy moves far (see the KL); an engine left behind would show it."""
    lines = metrics(tuned)

    assert lines[-1]["kl"] > 0.01
    assert all(1.0 <= line["rollout_mismatch"] < 1.05 for line in lines)


def test_every_step_says_what_was_rolled_out(tuned: Path) -> None:
    lines = metrics(tuned)

    assert [line["step"] for line in lines] == list(range(1, 7))
    for line in lines:
        assert line["all_checks"] <= line["parses"] <= 1
        assert line["reward"] <= (line["parses"] + line["not_trivial"] + line["defined"] + line["uses_context"]) / 4
        assert {"reward_std", "loss", "entropy", "completion_length", "distinct", "top_shape"} <= line.keys()
    assert any(line["reward"] > 0 for line in lines)


def test_killed_and_its_newest_checkpoint_damaged_it_makes_the_same_model(
    tuned: Path, inputs: dict[str, Path], tmp_path: Path
) -> None:
    job = write_job(tmp_path / "job", "grpo", SPEC, **inputs)
    engine = start("tasks.grpo.grpo", job)
    wait_for_step(job, engine, 5)
    engine.kill()
    engine.wait()
    before, newest = complete_checkpoints(job)
    flip_a_bit(newest / "reward.json")

    assert start("tasks.grpo.grpo", job).wait() == 0, (job / "log.txt").read_text()

    said = (job / "log.txt").read_text()
    assert f"{newest} is damaged: reward.json was changed" in said and f"continuing from {before}" in said
    assert json.loads((job / "result.json").read_text()) == json.loads((tuned / "result.json").read_text())
    assert without_times(job) == without_times(tuned)
