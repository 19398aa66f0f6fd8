"""A run that continues another one has that run's weights and optimizer state; steps, schedule and data are its own.

On text of one repeated sequence, the samples of a step do not matter. Therefore two runs of which the second
continues the first must equal a single run with the same number of steps, to the bit.
"""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from baton.tasks.core.manifest import read_manifest, verify
from baton.tasks.pretrain.optimizer_spec import OptimizerSpec
from baton.tasks.pretrain.spec import PretrainSpec
from tests.pretrain.killing import LAYOUTS, Kills, kill_again_and_again, killable, outcome, undisturbed
from tests.pretrain.ranks import engine
from tests.pretrain.tiny import MODEL, make_shards, metrics, pretrain_job, tiny_spec, write_shards

FLAT = OptimizerSpec(lr=1e-2, min_lr=1e-2, warmup_steps=0)
STILL = OptimizerSpec(lr=1e-12, min_lr=1e-12, warmup_steps=0)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_shards(tmp_path_factory.mktemp("data") / "shards")


@pytest.fixture(scope="module")
def repeated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    row = np.random.default_rng(0).integers(1, 260, size=32)  # the length of a sequence
    return write_shards(tmp_path_factory.mktemp("repeated") / "shards", [row] * 40, [row] * 8)


def trained(job: Path) -> Path:
    engine(job).succeed()
    return job


def refused(job: Path) -> str:
    assert any(engine(job).end())
    return str(json.loads((job / "result.json").read_text())["error"])


def flat(steps: int, name: str = "one process", **changes: Any) -> PretrainSpec:
    return tiny_spec(optimizer=FLAT, steps=steps, layout=LAYOUTS[name], **changes)


@pytest.fixture(scope="module")
def before(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(pretrain_job(tmp_path_factory.mktemp("before") / "job", data, tiny_spec(steps=3))) / "output"


@pytest.fixture(scope="module")
def fp32(repeated: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[int, str], Path]:
    """A cached function that runs a number of fp32 steps under a layout."""
    folder = tmp_path_factory.mktemp("fp32")

    @cache
    def run(steps: int, name: str) -> Path:
        return trained(pretrain_job(folder / f"{steps} {name}", repeated, flat(steps, name, precision="fp32")))

    return run


@pytest.mark.long
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_runs_of_four_and_two_and_two_steps_are_one_of_eight(precision: str, repeated: Path, tmp_path: Path) -> None:
    whole = trained(pretrain_job(tmp_path / "whole", repeated, flat(8, precision=precision)))
    first = trained(pretrain_job(tmp_path / "first", repeated, flat(4, precision=precision)))
    spec = flat(2, precision=precision, seed=99)
    second = trained(pretrain_job(tmp_path / "second", repeated, spec, resume=first / "output"))
    third = trained(pretrain_job(tmp_path / "third", repeated, spec, resume=second / "output"))
    parts = [step for job in (first, second, third) for step in metrics(job).values()]
    assert parts == list(metrics(whole).values())
    facts, of_whole = (verify(job / "output").facts for job in (third, whole))
    assert facts["validation_loss"] == of_whole["validation_loss"]
    assert facts["tokens_seen"] == of_whole["tokens_seen"] == 8 * 4 * 32
    assert facts["step"] == 2


@pytest.mark.long
@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("TP2", "one process"),
        ("one process", "DP2-DO"),
        pytest.param("DP2-DO", "PP2", marks=pytest.mark.slow),
        pytest.param("PP2", "TP2", marks=pytest.mark.slow),
    ],
)
def test_under_another_layout_too(
    one: str, other: str, repeated: Path, fp32: Callable[[int, str], Path], tmp_path: Path
) -> None:
    spec = flat(4, other, precision="fp32")
    second = trained(pretrain_job(tmp_path / "second", repeated, spec, resume=fp32(4, one) / "output"))
    found, expected = metrics(second), metrics(fp32(8, "one process"))
    for step in range(1, 5):
        assert found[step]["loss"] == pytest.approx(expected[4 + step]["loss"], rel=1e-4)
        assert found[step]["grad_norm"] == pytest.approx(expected[4 + step]["grad_norm"], rel=1e-3)


def test_weights_alone_would_go_another_way(repeated: Path, fp32: Callable[[int, str], Path], tmp_path: Path) -> None:
    """This shows that the tests above can detect a difference: here the same weights continue without AdamW's state."""
    first = fp32(4, "one process") / "output"
    fresh = metrics(trained(pretrain_job(tmp_path / "fresh", repeated, flat(4, precision="fp32"), begin=first)))
    whole = metrics(fp32(8, "one process"))
    assert fresh[1]["loss"] == whole[5]["loss"]
    assert all(abs(fresh[step]["loss"] - whole[4 + step]["loss"]) > 1e-3 for step in (2, 3, 4))


def test_it_begins_with_the_loss_that_the_other_ended_with(data: Path, tmp_path: Path) -> None:
    first = trained(pretrain_job(tmp_path / "first", data, tiny_spec()))
    spec = tiny_spec(optimizer=STILL, steps=1, validate_every=1)
    second = trained(pretrain_job(tmp_path / "second", data, spec, resume=first / "output"))
    before, after = (verify(job / "output").facts["validation_loss"] for job in (first, second))
    assert after == pytest.approx(before, abs=1e-5)
    assert read_manifest(second / "output").parents["resume.0"] == read_manifest(first / "output").digest


def test_schedule_steps_and_place_in_the_data_are_its_own(data: Path, tmp_path: Path) -> None:
    first = trained(pretrain_job(tmp_path / "first", data, tiny_spec()))
    again = OptimizerSpec(lr=5e-3, min_lr=1e-3, warmup_steps=2, warmup_from=1e-3)
    spec = tiny_spec(optimizer=again)
    second = trained(pretrain_job(tmp_path / "second", data, spec, resume=first / "output"))
    rates = [step["lr"] for step in metrics(second).values()]
    assert rates[:3] == pytest.approx([1e-3, 3e-3, 5e-3])
    assert rates[3:] == sorted(rates[3:], reverse=True)
    plain = torch.load(second / "output" / "checkpoint" / "common.pt", weights_only=True)["plain"]
    assert {name: plain[name] for name in ("step", "samples", "schedule")} == {"step": 8, "samples": 32, "schedule": 8}
    assert (plain["updates"], plain["tokens"]) == (16, 2 * 32 * 32)
    assert len(plain["losses"]) == 8


@pytest.mark.parametrize(
    ("name", "count"),
    [
        pytest.param("DP2-DO", 4, marks=pytest.mark.long),
        *(pytest.param(name, 20, marks=pytest.mark.slow) for name in LAYOUTS),
    ],
)
def test_killed_again_and_again_it_ends_as_if_it_had_not_been(
    name: str, count: int, before: Path, data: Path, tmp_path: Path
) -> None:
    """The run is also killed before its own first checkpoint; once it has one, it continues from it."""
    spec = killable(LAYOUTS[name], steps=16)
    reference = pretrain_job(tmp_path / "undisturbed", data, spec, resume=before)
    seconds = undisturbed(engine, reference)
    kills = Kills(count)
    jobs = kill_again_and_again(engine, tmp_path, data, spec, seconds, kills, seed=name, resume=before)
    assert [outcome(job) for job in jobs] == [outcome(reference)] * len(jobs)
    print(f"{name}: {count} kills in {len(jobs)} runs; {dict(kills.found)}")


# -- errors ------------------------------------------------------------------------------------------


def test_another_model(before: Path, data: Path, tmp_path: Path) -> None:
    spec = tiny_spec(model=MODEL.model_copy(update={"rope_theta": 500.0}))
    error = refused(pretrain_job(tmp_path / "job", data, spec, resume=before))
    assert "rope_theta is 500.0, but 10000.0 in the weights" in error


def test_data_in_another_tokenizers_tokens(before: Path, tmp_path: Path) -> None:
    shards = make_shards(tmp_path / "shards", tokenizer_digest="1" * 64)
    error = refused(pretrain_job(tmp_path / "job", shards, tiny_spec(), resume=before))
    assert "tokenized with 111111111111, but the checkpoint was trained with 000000000000" in error


def test_another_precision(before: Path, data: Path, tmp_path: Path) -> None:
    error = refused(pretrain_job(tmp_path / "job", data, tiny_spec(precision="fp32"), resume=before))
    assert "pretrain.precision: fp32" in error
    assert "set precision: bf16" in error


def test_two_models_to_begin_with(before: Path, data: Path, tmp_path: Path) -> None:
    error = refused(pretrain_job(tmp_path / "job", data, tiny_spec(), begin=before, resume=before))
    assert "got 2: start.0, resume.0; give only one" in error


def test_a_checkpoint_that_was_changed(before: Path, data: Path, tmp_path: Path) -> None:
    job = pretrain_job(tmp_path / "job", data, tiny_spec(), resume=before)
    common = before / "checkpoint" / "common.pt"
    content = common.read_bytes()
    try:
        common.write_bytes(b"X" + content[1:])
        assert "checkpoint/common.pt was changed" in refused(job)
    finally:
        common.write_bytes(content)
