"""Load an existing Hugging Face model."""

import json
import subprocess
import sys
from pathlib import Path
from uuid import uuid4

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, MambaConfig, MambaForCausalLM, Qwen3Config, Qwen3ForCausalLM

from tasks.convert.load_hf import work
from tasks.convert.load_hf_spec import LoadHFSpec
from tasks.job import StageError, open_job
from tasks.manifest import ArtifactError, verify
from tests.convert.tiny import make_tokenizer
from tests.pretrain.tiny import VOCABULARY, write_job
from tests.s3 import S3


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A folder as save_pretrained writes it."""
    folder = make_tokenizer(tmp_path / "model")
    (folder / "manifest.json").unlink()
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=128,
        eos_token_id=0,
    )
    Qwen3ForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    return folder


def load_hf(model: Path, job: Path) -> tuple[int, dict[str, str]]:
    """Run in this process; returns exit code and result.json of `tasks.job.main`."""
    write_job(job, "load_hf", "hf_model", LoadHFSpec(model=str(model)).model_dump(mode="json"))
    try:
        work(open_job(job))
    except (StageError, ArtifactError) as error:
        return 1, {"error": str(error), "kind": type(error).__name__}
    return 0, json.loads((job / "result.json").read_text())


def test_a_loaded_model_is_the_same_model(model: Path, tmp_path: Path) -> None:
    job = tmp_path / "job"
    write_job(job, "load_hf", "hf_model", LoadHFSpec(model=str(model)).model_dump(mode="json"))
    completed = subprocess.run(
        [sys.executable, "-m", "tasks.convert.load_hf", str(job)], capture_output=True, check=False
    )
    assert completed.returncode == 0, completed.stderr.decode()[-2000:]
    facts = verify(tmp_path / "job" / "output").facts
    assert (facts["label"], facts["dtype"], facts["max_positions"]) == ("base", "bf16", 128)
    before, after = (AutoModelForCausalLM.from_pretrained(path) for path in (model, tmp_path / "job" / "output"))
    for name, weight in before.state_dict().items():
        assert torch.equal(weight, after.state_dict()[name]), name


def test_a_model_at_an_address_is_downloaded_and_loaded(
    s3: S3, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Downloads its weights and the files that are read with them, but no others."""
    monkeypatch.setenv("BATON_CACHE", str(tmp_path / "cache"))
    key = uuid4().hex
    (model / "original").mkdir()
    (model / "original/consolidated.pth").write_bytes(b"pickled")
    for path in model.rglob("*"):
        if path.is_file():
            s3.write(f"{key}/{path.relative_to(model)}", path.read_bytes())
    with s3.flyte(tmp_path):
        spec = LoadHFSpec(model=f"{s3.address}/{key}")
        assert spec.missing() == []
        assert spec.max_positions() == 128
        state = spec.as_found().state
        write_job(tmp_path / "job", "load_hf", "hf_model", spec.model_dump(mode="json"))
        work(open_job(tmp_path / "job"))
        s3.delete(f"{key}/config.json", f"{key}/model.safetensors")
        assert [problem.allowed.partition(",")[0] for problem in spec.missing()] == [
            "a folder with a valid config.json",
            "a folder with *.safetensors (pickled weights are not read)",
        ]
        assert spec.as_found().state != state
    verify(tmp_path / "job/output")
    (kept,) = (path for path in (tmp_path / "cache/brought").iterdir() if path.is_dir())
    assert not (kept / "original").exists()
    assert load_file(kept / "model.safetensors").keys() == load_file(model / "model.safetensors").keys()


def test_pickled_weights_are_refused(model: Path, tmp_path: Path) -> None:
    (model / "model.safetensors").unlink()
    torch.save({}, model / "pytorch_model.bin")
    code, result = load_hf(model, tmp_path / "job")
    assert code == 1
    assert "safetensors" in result["error"]


def test_pickles_beside_the_weights_are_neither_read_nor_taken_over(model: Path, tmp_path: Path) -> None:
    harm = tmp_path / "harm"
    for name in (
        "pytorch_model.bin",
        "optimizer.pt",
        "scheduler.pt",
        "rng_state.pth",
        "training_args.bin",
        "vocab.pkl",
    ):
        (model / name).write_bytes(f"cos\nmkdir\n(S'{harm}'\ntR.".encode())
    code, _ = load_hf(model, tmp_path / "job")
    assert code == 0 and not harm.exists()
    files = set(verify(tmp_path / "job" / "output").files)
    assert {Path(name).suffix for name in files} <= {".json", ".jinja", ".safetensors"}


def test_a_weight_that_is_missing_is_an_error_that_names_it(model: Path, tmp_path: Path) -> None:
    """transformers would initialize it randomly, with a warning."""
    weights = load_file(model / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, model / "model.safetensors", {"format": "pt"})
    code, result = load_hf(model, tmp_path / "job")
    assert code == 1
    assert "model.layers.1.mlp.up_proj.weight" in result["error"]


def test_weights_that_were_cut_are_an_error(model: Path, tmp_path: Path) -> None:
    weights = model / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    code, result = load_hf(model, tmp_path / "job")
    assert code == 1
    assert result["kind"] == "StageError" and str(model) in result["error"]


def test_a_config_of_no_known_model_is_refused(model: Path, tmp_path: Path) -> None:
    (model / "config.json").write_text(json.dumps({"model_type": "no-such-model"}))
    code, result = load_hf(model, tmp_path / "job")
    assert code == 1
    assert "no-such-model" in result["error"]


@pytest.mark.parametrize(("field", "value"), [("num_attention_heads", 0), ("hidden_size", "32"), ("head_dim", 7)])
def test_a_config_that_transformers_cannot_load_is_refused(
    model: Path, tmp_path: Path, field: str, value: object
) -> None:
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {field: value}))
    code, result = load_hf(model, tmp_path / "job")
    assert code == 1
    assert "cannot be loaded as a causal language model" in result["error"]


def test_a_vocabulary_smaller_than_the_tokenizers_is_refused(model: Path, tmp_path: Path) -> None:
    small = AutoModelForCausalLM.from_pretrained(model)
    small.resize_token_embeddings(100)
    small.save_pretrained(model)
    code, result = load_hf(model, tmp_path / "job")
    assert code == 1
    assert "vocabulary 100 is smaller" in result["error"]


def test_a_model_without_positions_is_refused(model: Path, tmp_path: Path) -> None:
    config = MambaConfig(vocab_size=VOCABULARY, hidden_size=8, state_size=2, num_hidden_layers=1, eos_token_id=0)
    MambaForCausalLM(config).save_pretrained(model)
    code, result = load_hf(model, tmp_path / "job")
    assert code == 1
    assert "its config has no max_position_embeddings" in result["error"]
