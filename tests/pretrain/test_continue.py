"""A run that continues another: its weights and optimizer state; steps, schedule and data are the new run's.

On text of one repeated sequence it does not matter which samples a step reads. So two runs of which the
second continues the first must be one run of as many steps, to the bit.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tasks.manifest import read_manifest, verify
from tasks.pretrain.layout import Layout
from tasks.pretrain.optimizer_spec import OptimizerSpec
from tasks.pretrain.spec import PretrainSpec
from tests.pretrain.killing import LAYOUTS, Kills, kill_again_and_again, killable, outcome
from tests.pretrain.ranks import engine
from tests.pretrain.tiny import MODEL, make_shards, metrics, pretrain_job, tiny_spec, write_shards

ONE = Layout(micro_batch=2)
FLAT = OptimizerSpec(lr=1e-2, min_lr=1e-2, warmup_steps=0)
STILL = OptimizerSpec(lr=1e-12, min_lr=1e-12, warmup_steps=0)

Trained = Callable[..., Path]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_shards(tmp_path_factory.mktemp("data") / "shards")


@pytest.fixture(scope="module")
def repeated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    row = np.random.default_rng(0).integers(1, 260, size=32)  # as long as a sequence
    return write_shards(tmp_path_factory.mktemp("repeated") / "shards", [row] * 40, [row] * 8)


def trained(job: Path) -> Path:
    engine(job).succeed()
    return job


def refused(job: Path) -> str:
    assert any(engine(job).end())
    return str(json.loads((job / "result.json").read_text())["error"])


def flat(steps: int, layout: Layout = ONE, **changes: Any) -> PretrainSpec:
    return tiny_spec(optimizer=FLAT, steps=steps, layout=layout, **changes)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_two_runs_of_four_steps_are_one_of_eight(precision: str, repeated: Path, tmp_path: Path) -> None:
    whole = trained(pretrain_job(tmp_path / "whole", repeated, flat(8, precision=precision)))
    first = trained(pretrain_job(tmp_path / "first", repeated, flat(4, precision=precision)))
    spec = flat(4, precision=precision, seed=99)
    second = trained(pretrain_job(tmp_path / "second", repeated, spec, resume=first / "output"))
    assert list(metrics(first).values()) + list(metrics(second).values()) == list(metrics(whole).values())
    facts, of_whole = (verify(job / "output").facts for job in (second, whole))
    assert facts["validation_loss"] == of_whole["validation_loss"]
    assert facts["tokens_seen"] == of_whole["tokens_seen"] == 8 * 4 * 32
    assert facts["step"] == 4


@pytest.mark.parametrize(
    ("one", "other"),
    [("TP2", "one process"), ("one process", "DP2-DO"), ("DP2-DO", "PP2"), ("PP2", "TP2")],
)
def test_under_another_layout_too(one: str, other: str, repeated: Path, tmp_path: Path) -> None:
    whole = trained(pretrain_job(tmp_path / "whole", repeated, flat(8, precision="fp32")))
    first = trained(pretrain_job(tmp_path / "first", repeated, flat(4, LAYOUTS[one], precision="fp32")))
    spec = flat(4, LAYOUTS[other], precision="fp32")
    second = trained(pretrain_job(tmp_path / "second", repeated, spec, resume=first / "output"))
    found, expected = metrics(second), metrics(whole)
    for step in range(1, 5):
        assert found[step]["loss"] == pytest.approx(expected[4 + step]["loss"], rel=1e-4)
        assert found[step]["grad_norm"] == pytest.approx(expected[4 + step]["grad_norm"], rel=1e-3)


def test_weights_alone_would_go_another_way(repeated: Path, tmp_path: Path) -> None:
    """What the tests above can tell apart: the same weights without AdamW's state."""
    first = trained(pretrain_job(tmp_path / "first", repeated, flat(4, precision="fp32")))
    jobs = [
        trained(pretrain_job(tmp_path / how, repeated, flat(4, precision="fp32"), **{how: first / "output"}))
        for how in ("resume", "begin")
    ]
    (second, *rest), (fresh, *others) = (list(metrics(job).values()) for job in jobs)
    assert second["loss"] == fresh["loss"]
    assert all(abs(one["loss"] - other["loss"]) > 1e-3 for one, other in zip(rest, others, strict=True))


def test_it_begins_with_the_loss_that_the_other_ended_with(data: Path, tmp_path: Path) -> None:
    first = trained(pretrain_job(tmp_path / "first", data, tiny_spec()))
    spec = tiny_spec(optimizer=STILL, steps=1, validate_every=1)
    second = trained(pretrain_job(tmp_path / "second", data, spec, resume=first / "output"))
    before, after = (verify(job / "output").facts["validation_loss"] for job in (first, second))
    assert after == pytest.approx(before, abs=1e-5)
    assert read_manifest(second / "output").parents["resume.0"] == read_manifest(first / "output").digest


def test_the_schedule_is_its_own_and_warms_up_from_where_it_is_told(data: Path, tmp_path: Path) -> None:
    first = trained(pretrain_job(tmp_path / "first", data, tiny_spec()))
    again = OptimizerSpec(lr=5e-3, min_lr=1e-3, warmup_steps=2, warmup_from=1e-3)
    spec = tiny_spec(optimizer=again)
    second = trained(pretrain_job(tmp_path / "second", data, spec, resume=first / "output"))
    rates = [step["lr"] for step in metrics(second).values()]
    assert rates[:3] == pytest.approx([1e-3, 3e-3, 5e-3])
    assert rates[3:] == sorted(rates[3:], reverse=True)


def test_killed_again_and_again_it_ends_as_if_it_had_not_been(data: Path, tmp_path: Path) -> None:
    """Also between its beginning and its first own checkpoint; and once it has one, it goes on from that."""
    first = trained(pretrain_job(tmp_path / "first", data, tiny_spec(layout=LAYOUTS["DP2-DO"])))
    spec = killable(LAYOUTS["DP2-DO"], steps=16)
    reference = pretrain_job(tmp_path / "undisturbed", data, spec, resume=first / "output")
    trained(reference)
    jobs = kill_again_and_again(
        engine, tmp_path, data, spec, seconds=3, kills=Kills(4), seed="continued", resume=first / "output"
    )
    assert [outcome(job) for job in jobs] == [outcome(reference)] * len(jobs)


# -- what is refused ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def before(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(pretrain_job(tmp_path_factory.mktemp("before") / "job", data, tiny_spec(steps=3))) / "output"


def test_another_model(before: Path, data: Path, tmp_path: Path) -> None:
    spec = tiny_spec(model=MODEL.model_copy(update={"rope_theta": 500.0}))
    error = refused(pretrain_job(tmp_path / "job", data, spec, resume=before))
    assert "rope_theta is 500.0, and 10000.0 in the weights" in error


def test_data_in_another_tokenizers_tokens(before: Path, tmp_path: Path) -> None:
    shards = make_shards(tmp_path / "shards", tokenizer_digest="1" * 64)
    error = refused(pretrain_job(tmp_path / "job", shards, tiny_spec(), resume=before))
    assert "tokenizer 111111111111, and the checkpoint learned those of 000000000000" in error


def test_another_precision(before: Path, data: Path, tmp_path: Path) -> None:
    error = refused(pretrain_job(tmp_path / "job", data, tiny_spec(precision="fp32"), resume=before))
    assert "pretrain.precision: fp32" in error
    assert "set precision: bf16" in error


def test_two_models_to_begin_with(before: Path, data: Path, tmp_path: Path) -> None:
    error = refused(pretrain_job(tmp_path / "job", data, tiny_spec(), begin=before, resume=before))
    assert "start.0, resume.0 are 2: give one of them" in error


def test_a_checkpoint_that_was_changed(before: Path, data: Path, tmp_path: Path) -> None:
    job = pretrain_job(tmp_path / "job", data, tiny_spec(), resume=before)
    common = before / "checkpoint" / "common.pt"
    content = common.read_bytes()
    try:
        common.write_bytes(b"X" + content[1:])
        assert "checkpoint/common.pt was changed" in refused(job)
    finally:
        common.write_bytes(content)
