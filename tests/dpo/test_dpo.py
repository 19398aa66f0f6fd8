"""The DPO engine, as its own process, on a tiny random model."""

import json
import shutil
from pathlib import Path

import pytest

from tasks.dpo.pairs import Pairs
from tasks.manifest import read_manifest, verify
from tests.posttrain.tiny import (
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
    "prompts": 24,  # three steps
    "steps": 12,
    "batch_size": 8,
    "micro_batch_size": 8,
    "warmup_steps": 1,
    "learning_rate": 0.003,
    "max_prompt_tokens": 120,
    "max_new_tokens": 32,
    "checkpoint_every": 4,
}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("tiny")
    return {"model": tiny_model(root / "model"), "corpus": tiny_corpus(root / "corpus")}


@pytest.fixture(scope="module")
def tuned(inputs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    job = write_job(tmp_path_factory.mktemp("dpo") / "job", "dpo", SPEC, **inputs)
    assert start("tasks.dpo.dpo", job).wait() == 0, (job / "log.txt").read_text()
    return job


def test_the_output_is_a_complete_model(tuned: Path, inputs: dict[str, Path]) -> None:
    assert verify(tuned / "output").facts == read_manifest(inputs["model"]).facts | {"label": "dpo"}


def test_the_pairs_are_the_models_own_failures(tuned: Path) -> None:
    found = Pairs.load(tuned / "work" / "pairs")

    assert found.sampled == 24 and len(found.pairs) == 24 - found.passed
    counted = metrics(tuned)[0]
    assert (counted["sampled"], counted["pairs"], counted["passed"]) == (24, len(found.pairs), found.passed)
    # what was rejected is what was sampled: cut at the limit, or ended by the end-of-text token
    assert all(pair.rejected_ids[-1] == 0 or len(pair.rejected_ids) == 32 for pair in found.pairs)


def test_the_real_statement_comes_to_be_preferred_and_does_not_become_unlikely(tuned: Path) -> None:
    first, *_, last = metrics(tuned)[1:]

    assert first["margin"] == 0  # policy and reference are still one model
    assert last["margin"] > 0 and last["preference_accuracy"] > 0.7
    assert last["loss"] < first["loss"]


def test_killed_and_started_again_it_keeps_its_samples_and_makes_the_same_model(
    tuned: Path, inputs: dict[str, Path], tmp_path: Path
) -> None:
    job = write_job(tmp_path / "job", "dpo", SPEC, **inputs)
    engine = start("tasks.dpo.dpo", job)
    wait_for_step(job, engine, 5)  # in the second epoch
    engine.kill()
    engine.wait()
    sampled_at = (job / "work" / "pairs" / "pairs.json").stat().st_mtime_ns

    assert start("tasks.dpo.dpo", job).wait() == 0, (job / "log.txt").read_text()

    assert (job / "work" / "pairs" / "pairs.json").stat().st_mtime_ns == sampled_at
    assert json.loads((job / "result.json").read_text()) == json.loads((tuned / "result.json").read_text())
    assert without_times(job) == without_times(tuned)


def test_damaged_samples_are_made_again(tuned: Path, inputs: dict[str, Path], tmp_path: Path) -> None:
    job = write_job(tmp_path / "job", "dpo", SPEC, **inputs)
    shutil.copytree(tuned / "work" / "pairs", job / "work" / "pairs")
    flip_a_bit(job / "work" / "pairs" / "pairs.json")

    assert start("tasks.dpo.dpo", job).wait() == 0, (job / "log.txt").read_text()

    said = (job / "log.txt").read_text()
    assert "pairs.json was changed" in said and "The model is sampled again" in said
    assert json.loads((job / "result.json").read_text()) == json.loads((tuned / "result.json").read_text())
