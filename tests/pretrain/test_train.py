"""The pretraining engine, end to end, with torchrun, Megatron-Core and real files."""

import json
from pathlib import Path

import pytest
import torch

from baton.tasks.core.manifest import read_manifest, verify
from baton.tasks.pretrain.layout import Layout
from tests.pretrain.ranks import engine
from tests.pretrain.tiny import make_shards, metrics, pretrain_job, tiny_spec, train


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_shards(tmp_path_factory.mktemp("data") / "shards")


@pytest.fixture(scope="module")
def undisturbed(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    job = pretrain_job(tmp_path_factory.mktemp("jobs") / "undisturbed", data, tiny_spec())
    train(job)
    return job


def test_the_loss_falls(undisturbed: Path) -> None:
    losses = [step["loss"] for step in metrics(undisturbed).values()]
    assert len(losses) == 8
    assert losses[-1] < losses[0] - 0.5


def test_the_artifact_has_its_facts_and_files(undisturbed: Path) -> None:
    manifest = verify(undisturbed / "output")
    assert manifest.facts["step"] == 8
    assert manifest.facts["tokens_seen"] == 8 * 4 * 32
    assert manifest.facts["parameters"] == tiny_spec().model.parameters(260)
    assert {"model.json", "checkpoint/.metadata", "checkpoint/common.pt"} <= manifest.files.keys()


def test_every_step_has_its_metrics(undisturbed: Path) -> None:
    first, *_, last = [json.loads(line) for line in (undisturbed / "metrics.jsonl").read_text().splitlines()]
    assert {"loss", "grad_norm", "lr", "tokens_per_s", "mfu"} <= first.keys()
    assert "validation_loss" in last


def test_the_same_run_again_has_the_same_digest(undisturbed: Path, data: Path, tmp_path: Path) -> None:
    again = pretrain_job(tmp_path / "elsewhere" / "again", data, tiny_spec())
    engine(again).succeed()
    assert metrics(again) == metrics(undisturbed)
    assert read_manifest(again / "output").digest == read_manifest(undisturbed / "output").digest


def test_changed_data_is_refused_by_name_and_digest(data: Path, tmp_path: Path) -> None:
    shards = make_shards(tmp_path / "shards")
    job = pretrain_job(tmp_path / "job", shards, tiny_spec())
    with (shards / "train.bin").open("r+b") as stream:
        stream.write(b"\xff")
    assert engine(job).end() == [1]
    result = json.loads((job / "result.json").read_text())
    assert "train.bin was changed" in result["error"]
    assert read_manifest(shards).digest[:12] in result["error"]


def test_a_vocabulary_smaller_than_the_data_is_refused(data: Path, tmp_path: Path) -> None:
    model = tiny_spec().model.model_copy(update={"vocab_size": 100})
    job = pretrain_job(tmp_path / "job", data, tiny_spec(model=model))
    assert engine(job).end() == [1]
    assert "smaller than the tokenizer's 260" in json.loads((job / "result.json").read_text())["error"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_run_that_is_meant_for_a_gpu_is_not_begun_without_one(data: Path, tmp_path: Path) -> None:
    job = pretrain_job(tmp_path / "job", data, tiny_spec(layout=Layout(micro_batch=2, device="H100")))
    assert engine(job).end() == [1]
    assert "this machine has no GPU" in json.loads((job / "result.json").read_text())["error"]
