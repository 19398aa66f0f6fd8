"""The DPO engine as a subprocess, on a tiny random model."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from baton.tasks.core.job import StageError, open_job
from baton.tasks.core.manifest import read_manifest, verify
from baton.tasks.posttrain import trainer
from baton.tasks.posttrain.methods.dpo.pairs import Pairs
from baton.tasks.posttrain.methods.dpo.trainer import train
from tests.posttrain.tiny import (
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
    "steps": 12,
    "batch_size": 8,
    "layout": {"micro_batch": 8},
    "warmup_steps": 1,
    "learning_rate": 0.003,
    "max_new_tokens": 16,
    "checkpoint_every": 3,
}


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The spec of a run that samples its pairs."""
    return SPEC | {"pairs": {"rewards": [reward(tmp_path_factory.mktemp("rewards"))], "prompts": 64}}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("tiny")
    rows = tiny_rows(root / "rows", repeated_words(), "prompt_completion")
    return {"model": tiny_model(root / "model"), "rows": rows}


@pytest.fixture(scope="module")
def tuned(vllm: None, inputs: dict[str, Path], spec: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    job = write_job(tmp_path_factory.mktemp("dpo") / "job", "dpo", spec, **inputs)
    assert start("baton.tasks.posttrain.engine", job).wait() == 0, (job / "log.txt").read_text()
    return job


def test_the_output_is_a_complete_model(tuned: Path, inputs: dict[str, Path]) -> None:
    assert verify(tuned / "output").facts == read_manifest(inputs["model"]).facts | {"label": "dpo"}


def test_the_pairs_are_the_models_own_failures(tuned: Path) -> None:
    found = Pairs.load(tuned / "work" / "pairs")

    counted = metrics(tuned)[0]
    assert (counted["step"], counted["rows"], counted["sampled"], counted["pairs"]) == (0, 64, 64, len(found.pairs))
    assert 0 < len(found.pairs) <= 64
    assert counted["right"] == found.rewards["right"] < 0.5  # a random model
    # a rejected completion is one that was sampled: it is cut at the limit, or ends with the end-of-text token
    assert all(pair.rejected_ids[-1] == 0 or len(pair.rejected_ids) == 16 for pair in found.pairs)
    assert all(pair.chosen_ids[-1] == 0 for pair in found.pairs)


def test_the_rows_own_completion_comes_to_be_preferred_and_does_not_become_unlikely(tuned: Path) -> None:
    first, *_, last = metrics(tuned)[1:]

    assert first["margin"] == 0  # policy and reference are still the same model
    assert last["margin"] > 0 and last["preference_accuracy"] > 0.7
    assert last["loss"] < first["loss"]


def test_killed_and_restarted_it_keeps_its_samples_and_makes_the_same_model(
    tuned: Path, inputs: dict[str, Path], spec: dict[str, Any], tmp_path: Path
) -> None:
    job = write_job(tmp_path / "job", "dpo", spec, **inputs)
    engine = start("baton.tasks.posttrain.engine", job)
    wait_for_step(job, engine, 5)  # a step of the second epoch
    engine.kill()
    engine.wait()
    sampled_at = (job / "work" / "pairs" / "pairs.json").stat().st_mtime_ns

    assert start("baton.tasks.posttrain.engine", job).wait() == 0, (job / "log.txt").read_text()

    assert (job / "work" / "pairs" / "pairs.json").stat().st_mtime_ns == sampled_at
    assert json.loads((job / "result.json").read_text()) == json.loads((tuned / "result.json").read_text())
    assert without_times(job) == without_times(tuned)


def test_damaged_samples_are_recomputed(
    tuned: Path,
    inputs: dict[str, Path],
    spec: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    job = write_job(tmp_path / "job", "dpo", spec, **inputs)
    shutil.copytree(tuned / "work" / "pairs", job / "work" / "pairs")
    flip_a_bit(job / "work" / "pairs" / "pairs.json")
    for after in ("fit", "finish"):
        monkeypatch.setattr(trainer.Setup, after, lambda *_, **__: None)

    train(open_job(job))

    output = capfd.readouterr().out
    assert "pairs.json was changed" in output and "Sampling the model again" in output
    made, first = (folder / "work" / "pairs" / "pairs.json" for folder in (job, tuned))
    assert made.read_bytes() == first.read_bytes()


def test_preferences_that_are_given_are_learned_as_they_are(inputs: dict[str, Path], tmp_path: Path) -> None:
    preferences = [
        {
            "prompt": [{"role": "user", "content": row["prompt"]}],
            "chosen": assistant(row["completion"]),
            "rejected": assistant("?"),
        }
        for row in repeated_words()
    ]
    rows = tiny_rows(
        tmp_path / "rows", [*preferences, preferences[0] | {"rejected": assistant("no " * 50)}], "preference"
    )
    spec = SPEC | {"batch_size": 32, "layout": {"micro_batch": 32}, "steps": 13, "label": "polite"}
    job = write_job(tmp_path / "job", "dpo", spec, model=inputs["model"], rows=rows)

    train(open_job(job))

    counted, *lines = metrics(job)
    assert (counted["rows"], counted["rows_too_long"]) == (400, 1)
    assert lines[-1]["margin"] > 0 and lines[-1]["preference_accuracy"] > 0.9
    assert verify(job / "output").facts["label"] == "polite"
    assert AutoTokenizer.from_pretrained(job / "output").chat_template


def assistant(text: str) -> list[dict[str, str]]:
    return [{"role": "assistant", "content": text}]


@pytest.mark.usefixtures("vllm")
@pytest.mark.parametrize(
    ("pairs", "complaint"),
    [
        ({"rewards": ["never"]}, r"no completion of the 8 prompts is worse than the row's own: there are no pairs"),
        ({"rewards": ["never"], "chosen": "best", "samples": 2}, "is worse than another"),
    ],
)
def test_without_a_pair_it_says_so(
    inputs: dict[str, Path], tmp_path: Path, pairs: dict[str, Any], complaint: str
) -> None:
    rewards = [reward(tmp_path / "rewards", name) for name in pairs["rewards"]]
    spec = SPEC | {"pairs": pairs | {"rewards": rewards, "prompts": 8}}

    with pytest.raises(StageError, match=complaint):
        train(open_job(write_job(tmp_path / "job", "dpo", spec, **inputs)))


def test_the_rows_own_completion_cannot_be_chosen_where_there_is_none(
    inputs: dict[str, Path], spec: dict[str, Any], tmp_path: Path
) -> None:
    rows = tiny_rows(tmp_path / "rows", [{"prompt": "1 + 1 =", "answer": "2"}], "prompt")
    job = write_job(tmp_path / "job", "dpo", spec, model=inputs["model"], rows=rows)

    with pytest.raises(StageError, match="gold needs rows with a completion, but the rows of this set have only"):
        train(open_job(job))


def test_rows_without_pairs_are_refused(inputs: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(StageError, match="dpo needs rows of kind preference; the rows of this set are prompt_compl"):
        train(open_job(write_job(tmp_path / "job", "dpo", SPEC, **inputs)))


def test_a_reward_that_is_called_as_a_metric_of_the_training_is_refused(
    inputs: dict[str, Path], tmp_path: Path
) -> None:
    rewards = [reward(tmp_path / "rewards") | {"name": "step"}]
    job = write_job(tmp_path / "job", "dpo", SPEC | {"pairs": {"rewards": rewards, "prompts": 8}}, **inputs)

    with pytest.raises(StageError, match="reward step: training has a metric of this name"):
        train(open_job(job))
