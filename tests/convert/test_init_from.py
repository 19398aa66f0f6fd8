"""Pretraining that starts from a Hugging Face model."""

import json
from pathlib import Path

import pytest

from baton.tasks.convert.load_hf_spec import LoadHFSpec
from baton.tasks.convert.spec import ConvertSpec
from baton.tasks.core.manifest import read_manifest, verify
from baton.tasks.pretrain.layout import Layout
from baton.tasks.pretrain.optimizer_spec import OptimizerSpec
from tests.convert.test_export import run
from tests.convert.tiny import make_tokenizer
from tests.pretrain.ranks import engine
from tests.pretrain.tiny import MODEL, make_shards, metrics, pretrain_job, tiny_spec, write_job

pytestmark = pytest.mark.long

GENERATION = '{"eos_token_id": [0, 7],   "temperature": 0.6}'
STILL = OptimizerSpec(lr=1e-12, min_lr=1e-12, warmup_steps=0)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A model that was trained here, exported, and imported like any other model."""
    root = tmp_path_factory.mktemp("init")
    tokenizer = make_tokenizer(root / "tokenizer")
    data = make_shards(root / "shards", read_manifest(tokenizer).digest)
    trained = pretrain_job(root / "first", data, tiny_spec(precision="fp32"))
    engine(trained).succeed()
    spec = ConvertSpec(dtype="fp32").model_dump(mode="json")
    export = write_job(root / "export", "convert", "hf_model", spec, checkpoint=trained / "output", tokenizer=tokenizer)
    assert run("export", export) == 0, (export / "log.txt").read_text()[-3000:]
    (export / "output/generation_config.json").write_text(GENERATION)
    spec = LoadHFSpec(model=str(export / "output")).model_dump(mode="json")
    weights = write_job(root / "weights", "import_hf", "megatron_weights", spec)
    assert run("import_stage", weights) == 0, (weights / "log.txt").read_text()[-3000:]
    return {"data": data, "trained": trained / "output", "weights": weights / "output", "tokenizer": tokenizer}


def test_the_weights_are_an_artifact(made: dict[str, Path]) -> None:
    facts = verify(made["weights"]).facts
    assert facts["architecture"] == "Qwen3ForCausalLM"
    assert facts["parameters"] == MODEL.parameters(260)


@pytest.mark.parametrize(
    "layout",
    [
        Layout(micro_batch=4),
        Layout(processes=2, tensor=2, micro_batch=4),
        Layout(processes=2, distributed_optimizer=True, micro_batch=2),
    ],
    ids=Layout.name,
)
def test_a_run_begins_with_the_loss_of_the_model_it_starts_from(
    made: dict[str, Path], tmp_path: Path, layout: Layout
) -> None:
    spec = tiny_spec(precision="fp32", optimizer=STILL, steps=1, validate_every=1, layout=layout)
    job = pretrain_job(tmp_path / "job", made["data"], spec, begin=made["weights"])
    engine(job).succeed()
    (before, after) = (verify(path).facts["validation_loss"] for path in (made["trained"], job / "output"))
    assert after == pytest.approx(before, abs=1e-5)
    assert read_manifest(job / "output").parents["start.0"] == read_manifest(made["weights"]).digest


def test_a_run_in_bf16_learns_from_there(made: dict[str, Path], tmp_path: Path) -> None:
    """The optimizer's fp32 copies have these weights too; otherwise the first update would undo them."""
    job = pretrain_job(tmp_path / "job", made["data"], tiny_spec(steps=3), begin=made["weights"])
    engine(job).succeed()
    losses = [step["loss"] for step in metrics(job).values()]
    first = verify(made["trained"]).facts["validation_loss"]
    assert all(loss < first + 0.5 for loss in losses)


def test_another_model_is_refused(made: dict[str, Path], tmp_path: Path) -> None:
    spec = tiny_spec(model=MODEL.model_copy(update={"rope_theta": 500.0}))
    job = pretrain_job(tmp_path / "job", made["data"], spec, begin=made["weights"])
    assert engine(job).end() == [1]
    error = json.loads((job / "result.json").read_text())["error"]
    assert "rope_theta is 500.0, but 10000.0 in the weights" in error


def test_what_is_trained_on_ends_and_is_sampled_as_the_model_that_it_began_with(
    made: dict[str, Path], tmp_path: Path
) -> None:
    """The next night, which continues the run, is included."""
    one_step = tiny_spec(steps=1, optimizer=STILL)
    first = pretrain_job(tmp_path / "first", made["data"], one_step, begin=made["weights"])
    engine(first).succeed()
    second = pretrain_job(tmp_path / "second", made["data"], one_step, resume=first / "output")
    engine(second).succeed()
    spec = ConvertSpec(dtype="fp32").model_dump(mode="json")
    inputs = {"checkpoint": second / "output", "tokenizer": made["tokenizer"]}
    export = write_job(tmp_path / "export", "convert", "hf_model", spec, **inputs)
    assert run("export", export) == 0, (export / "log.txt").read_text()[-3000:]
    assert (export / "output/generation_config.json").read_text() == GENERATION
