"""Megatron → Hugging Face, and what the proof catches."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from tasks.convert.spec import ConvertSpec
from tasks.job import StageError
from tasks.manifest import read_manifest, verify
from tests.convert.tiny import make_tokenizer
from tests.pretrain.tiny import MODEL, VOCABULARY, make_shards, pretrain_job, tiny_spec, train, write_job


def run_export(job: Path) -> int:
    with (job / "log.txt").open("ab") as log:
        command = [sys.executable, "-m", "tasks.convert.export", str(job)]
        return subprocess.run(command, stdout=log, stderr=log, check=False, timeout=300).returncode


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Tokenizer, shards, a trained checkpoint, and its conversion's job."""
    root = tmp_path_factory.mktemp("convert")
    tokenizer = make_tokenizer(root / "tokenizer")
    data = make_shards(root / "shards", read_manifest(tokenizer).digest)
    model = MODEL.model_copy(update={"init_std": 0.2})  # every weight counts enough to be missed
    trained = pretrain_job(root / "pretrain", data, tiny_spec(steps=4, model=model))
    train(trained)
    found = {"tokenizer": tokenizer, "data": data, "checkpoint": trained / "output"}
    job = write_job(root / "convert", "convert", "hf_model", ConvertSpec().model_dump(mode="json"), **found)
    assert run_export(job) == 0, (job / "log.txt").read_text()[-3000:]
    return found | {"job": job, "model": job / "output"}


def test_the_export_loads_as_a_hugging_face_model(chain: dict[str, Path]) -> None:
    model = AutoModelForCausalLM.from_pretrained(chain["model"])
    assert type(model).__name__ == "Qwen3ForCausalLM"
    assert sum(weight.numel() for weight in model.parameters()) == MODEL.parameters(VOCABULARY)
    assert model.config.rope_parameters["rope_theta"] == MODEL.rope_theta
    assert model.generation_config.eos_token_id == AutoTokenizer.from_pretrained(chain["model"]).eos_token_id


def test_the_proof_is_kept_with_the_model(chain: dict[str, Path]) -> None:
    parity = json.loads((chain["model"] / "record" / "parity.json").read_text())
    assert parity["max_abs_diff"] <= 1e-4
    assert parity["argmax_agreement"] == 1.0
    assert parity["tokens"] >= 700
    targets = [entry["target"] for entry in parity["tensors"]]
    sources = {source for entry in parity["tensors"] for source in entry["sources"]}
    assert len(targets) == len(set(targets)) == 2 + 11 * MODEL.layers
    assert len(sources) == 2 + 8 * MODEL.layers


def test_the_facts_say_what_the_model_is(chain: dict[str, Path]) -> None:
    facts = verify(chain["model"]).facts
    assert facts["parameters"] == MODEL.parameters(VOCABULARY)
    assert (facts["label"], facts["dtype"], facts["max_positions"]) == ("base", "bf16", 64)


def test_a_changed_checkpoint_is_refused(chain: dict[str, Path], tmp_path: Path) -> None:
    damaged = tmp_path / "checkpoint"
    shutil.copytree(chain["checkpoint"], damaged)
    job = write_job(
        tmp_path / "job",
        "convert",
        "hf_model",
        ConvertSpec().model_dump(mode="json"),
        checkpoint=damaged,
        tokenizer=chain["tokenizer"],
        data=chain["data"],
    )
    weights = sorted(damaged.glob("checkpoint/*.distcp"))[0]
    weights.write_bytes(weights.read_bytes()[:-100])
    assert run_export(job) == 1
    assert "distcp has" in json.loads((job / "result.json").read_text())["error"]


def test_a_foreign_tokenizer_is_refused(chain: dict[str, Path], tmp_path: Path) -> None:
    other = make_tokenizer(tmp_path / "other", text="entirely different words to merge, again and again and again")
    inputs = {"checkpoint": chain["checkpoint"], "tokenizer": other, "data": chain["data"]}
    job = write_job(tmp_path / "job", "convert", "hf_model", ConvertSpec().model_dump(mode="json"), **inputs)
    assert run_export(job) == 1
    assert "was trained with tokenizer" in json.loads((job / "result.json").read_text())["error"]


def swap(weights: dict[str, torch.Tensor], one: str, other: str) -> None:
    weights[one], weights[other] = weights[other].clone(), weights[one].clone()


LAYER = "model.layers.0."


def swap_q_and_k_norm(weights: dict[str, torch.Tensor]) -> None:
    weights[LAYER + "self_attn.q_norm.weight"].add_(0.5)  # they are nearly equal after a few steps
    swap(weights, LAYER + "self_attn.q_norm.weight", LAYER + "self_attn.k_norm.weight")


def reorder_heads(weights: dict[str, torch.Tensor]) -> None:
    weights[LAYER + "self_attn.q_proj.weight"] = weights[LAYER + "self_attn.q_proj.weight"].roll(16, 0)


def transpose(weights: dict[str, torch.Tensor]) -> None:
    weights[LAYER + "self_attn.k_proj.weight"] = weights[LAYER + "self_attn.k_proj.weight"].T.contiguous()


def rescale_the_last_norm(weights: dict[str, torch.Tensor]) -> None:
    weights["model.norm.weight"].mul_(1.25)


def flip_a_bit(weights: dict[str, torch.Tensor]) -> None:
    weights[LAYER + "mlp.up_proj.weight"].view(torch.int16)[3, 5] ^= 1 << 13  # in the exponent


MUTATIONS: dict[str, Callable[[dict[str, torch.Tensor]], None]] = {
    "k and v swapped": lambda w: swap(w, LAYER + "self_attn.k_proj.weight", LAYER + "self_attn.v_proj.weight"),
    "gate and up swapped": lambda w: swap(w, LAYER + "mlp.gate_proj.weight", LAYER + "mlp.up_proj.weight"),
    "q and k norm swapped": swap_q_and_k_norm,
    "heads in another order": reorder_heads,
    "a square matrix transposed": transpose,
    "layers swapped": lambda w: swap(w, LAYER + "mlp.down_proj.weight", "model.layers.1.mlp.down_proj.weight"),
    "the last norm rescaled": rescale_the_last_norm,
    "one bit flipped": flip_a_bit,
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_wrong_weight_fails_the_comparison(chain: dict[str, Path], tmp_path: Path, name: str) -> None:
    damaged = copy_model(chain, tmp_path)
    weights = load_file(damaged / "model.safetensors")
    MUTATIONS[name](weights)
    save_file(weights, damaged / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(StageError, match="is not the trained one"):
        compare_with(chain, damaged)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("rms_norm_eps", 1e-2),
        ("tie_word_embeddings", False),
        ("rope_parameters", {"rope_type": "default", "rope_theta": 500.0}),
    ],
)
def test_a_wrong_config_fails_the_comparison(chain: dict[str, Path], tmp_path: Path, field: str, value: object) -> None:
    damaged = copy_model(chain, tmp_path)
    config = json.loads((damaged / "config.json").read_text())
    (damaged / "config.json").write_text(json.dumps(config | {field: value}))
    with pytest.raises(StageError, match="is not the trained one"):
        compare_with(chain, damaged)


def test_the_export_itself_passes_the_same_comparison(chain: dict[str, Path]) -> None:
    compare_with(chain, chain["model"])


def copy_model(chain: dict[str, Path], folder: Path) -> Path:
    return Path(shutil.copytree(chain["model"], folder / "model"))


def compare_with(chain: dict[str, Path], exported: Path) -> None:
    from tasks.convert.export import held_out_tokens, load_trained
    from tasks.convert.parity import compare

    trained = load_trained(MODEL, VOCABULARY, chain["checkpoint"]).to(torch.bfloat16).float()
    compare(trained, exported, held_out_tokens(chain["data"], 512, 64), 1e-4).require()
