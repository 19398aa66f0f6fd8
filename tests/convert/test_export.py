"""The stages that export a trained checkpoint to Hugging Face's format and audit the export."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from baton.tasks.convert.audit_stage import held_out_tokens
from baton.tasks.convert.spec import AuditSpec, ConvertSpec
from baton.tasks.core.job import StageError
from baton.tasks.core.manifest import read_manifest, verify, write_manifest
from tests import forked
from tests.convert.tiny import make_tokenizer
from tests.pretrain.ranks import engine
from tests.pretrain.tiny import MODEL, VOCABULARY, make_shards, pretrain_job, tiny_spec, write_job, write_shards

forked.load("baton.tasks.convert.export", "baton.tasks.convert.audit_stage")


def run(engine: str, job: Path) -> int:
    return forked.module(f"baton.tasks.convert.{engine}", job).wait(timeout=300)


def export_job(job: Path, **inputs: Path) -> Path:
    expected = {name: inputs[name] for name in ("checkpoint", "tokenizer")}
    return write_job(job, "convert", "hf_model", ConvertSpec().model_dump(mode="json"), **expected)


def audit_job(job: Path, **inputs: Path) -> Path:
    expected = {name: inputs[name] for name in ("checkpoint", "model", "data")}
    return write_job(job, "audit", "conversion_audit", AuditSpec().model_dump(mode="json"), **expected)


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A tokenizer, shards, a trained checkpoint, its conversion and its audit."""
    root = tmp_path_factory.mktemp("convert")
    tokenizer = make_tokenizer(root / "tokenizer")
    data = make_shards(root / "shards", read_manifest(tokenizer).digest)
    trained = pretrain_job(root / "pretrain", data, tiny_spec(steps=4))
    engine(trained).succeed()
    found = {"tokenizer": tokenizer, "data": data, "checkpoint": trained / "output"}
    job = export_job(root / "convert", **found)
    assert run("export", job) == 0, (job / "log.txt").read_text()[-3000:]
    found["model"] = job / "output"
    job = audit_job(root / "audit", **found)
    assert run("audit_stage", job) == 0, (job / "log.txt").read_text()[-3000:]
    return found | {"audit": job / "output"}


def test_the_export_loads_as_a_hugging_face_model(chain: dict[str, Path]) -> None:
    model = AutoModelForCausalLM.from_pretrained(chain["model"])
    assert type(model).__name__ == "Qwen3ForCausalLM"
    assert sum(weight.numel() for weight in model.parameters()) == MODEL.parameters(VOCABULARY)
    assert model.config.rope_parameters["rope_theta"] == MODEL.rope_theta
    assert model.generation_config.eos_token_id == AutoTokenizer.from_pretrained(chain["model"]).eos_token_id


def test_the_account_has_every_weight(chain: dict[str, Path]) -> None:
    account = json.loads((chain["model"] / "record" / "conversion.json").read_text())["weights"]
    assert len(account) == 2 + 8 * MODEL.layers
    assert sum(len(entry["parts"]) for entry in account) == 2 + 11 * MODEL.layers


def test_the_audit_is_an_artifact_with_its_figures(chain: dict[str, Path]) -> None:
    facts = verify(chain["audit"]).facts
    assert facts["logits_max_abs_diff"] <= 1e-4
    assert facts["argmax_agreement"] == 1.0
    assert facts["tokens"] >= 700
    assert (facts["tensors"], facts["parameters"]) == (2 + 11 * MODEL.layers, MODEL.parameters(VOCABULARY))


def test_the_facts_say_what_the_model_is(chain: dict[str, Path]) -> None:
    facts = verify(chain["model"]).facts
    assert facts["parameters"] == MODEL.parameters(VOCABULARY)
    assert (facts["label"], facts["dtype"], facts["max_positions"]) == ("base", "bf16", 64)


def test_a_changed_checkpoint_is_refused(chain: dict[str, Path], tmp_path: Path) -> None:
    damaged = tmp_path / "checkpoint"
    shutil.copytree(chain["checkpoint"], damaged)
    job = export_job(tmp_path / "job", **chain | {"checkpoint": damaged})
    weights = sorted(damaged.glob("checkpoint/*.distcp"))[0]
    weights.write_bytes(weights.read_bytes()[:-100])
    assert run("export", job) == 1
    assert "distcp has" in json.loads((job / "result.json").read_text())["error"]


def test_a_foreign_tokenizer_is_refused(chain: dict[str, Path], tmp_path: Path) -> None:
    other = make_tokenizer(tmp_path / "other", text="entirely different words to merge, again and again and again")
    job = export_job(tmp_path / "job", **chain | {"tokenizer": other})
    assert run("export", job) == 1
    assert "was trained with tokenizer" in json.loads((job / "result.json").read_text())["error"]


def test_an_audit_that_finds_a_difference_fails(chain: dict[str, Path], tmp_path: Path) -> None:
    """The audit fails even if the manifest of the model is valid."""
    other = Path(shutil.copytree(chain["model"], tmp_path / "model"))
    weights = load_file(other / "model.safetensors")
    weights["model.norm.weight"][3] += 0.5
    save_file(weights, other / "model.safetensors", metadata={"format": "pt"})
    write_manifest(other, "hf_model", verify(chain["model"]).facts)
    job = audit_job(tmp_path / "job", **chain | {"model": other})
    assert run("audit_stage", job) == 1
    assert "model.norm.weight: 1 of 32 elements differ" in json.loads((job / "result.json").read_text())["error"]
    assert (job / "output" / "audit.json").exists()


def test_an_audit_needs_held_out_text(tmp_path: Path) -> None:
    data = write_shards(tmp_path / "data", [np.arange(100)], [])
    with pytest.raises(StageError, match="has 0 held-out tokens"):
        held_out_tokens(data, count=10, longest=10)
