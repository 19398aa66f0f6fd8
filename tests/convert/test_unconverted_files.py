"""Files in a model's folder that a conversion does not carry over are reported or refused."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from baton.tasks.convert.load_hf_spec import LoadHFSpec
from baton.tasks.models.errors import ConversionError
from tests.convert.models import make
from tests.convert.test_round_trip import to_hugging_face, to_megatron


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return make("qwen3", tmp_path / "model", torch.bfloat16)


ADAPTER = ["adapter_config.json", "adapter_model.safetensors", "adapter_model.bin"]


@pytest.mark.parametrize("name", ADAPTER)
def test_an_adapter_beside_a_model_is_refused(name: str, model: Path, tmp_path: Path) -> None:
    (model / name).write_text("{}")
    with pytest.raises(ConversionError, match=rf"{name}.*merge_and_unload"):
        to_megatron(model, tmp_path / "target")
    assert not list(tmp_path.glob("target*"))


@pytest.mark.parametrize("name", ADAPTER)
def test_an_adapter_beside_a_model_to_start_from_is_seen_before_the_run(name: str, model: Path) -> None:
    (model / name).write_text("{}")
    assert any("merge_and_unload" in str(problem) for problem in LoadHFSpec(model=str(model)).missing())


def test_an_adapter_beside_a_tokenizer_is_not_put_beside_the_model(model: Path, tmp_path: Path) -> None:
    """Transformers would load the adapter with the model from then on."""
    ours = to_megatron(model, tmp_path / "ours")
    (tmp_path / "tokenizer").mkdir()
    (tmp_path / "tokenizer" / "adapter_config.json").write_text("{}")
    with pytest.raises(ConversionError, match=r"adapter_config\.json"):
        to_hugging_face(ours, tmp_path / "target", tmp_path / "tokenizer")


def other_files(model: Path) -> None:
    for folder in ("original", "onnx/fp16", ".cache/huggingface", "record"):
        (model / folder).mkdir(parents=True)
        (model / folder / "weights.bin").write_text("x")
    for name in ("pytorch_model.bin", "consolidated.safetensors", "manifest.json"):
        (model / name).write_text("{}")


OTHERS = ["consolidated.safetensors", "onnx/", "original/", "pytorch_model.bin"]


def test_other_weights_and_subfolders_are_in_the_account(model: Path, tmp_path: Path) -> None:
    other_files(model)
    to_megatron(model, tmp_path / "target")
    assert json.loads((tmp_path / "target" / "record" / "conversion.json").read_text())["left_out"] == OTHERS


def test_nothing_is_left_out_of_a_plain_model(model: Path, tmp_path: Path) -> None:
    to_megatron(model, tmp_path / "target")
    assert json.loads((tmp_path / "target" / "record" / "conversion.json").read_text())["left_out"] == []


@pytest.mark.long
def test_other_weights_and_subfolders_are_printed(model: Path, tmp_path: Path) -> None:
    other_files(model)
    (model / "manifest.json").unlink()
    command = [sys.executable, "-m", "baton", "convert", "import", str(model), str(tmp_path / "target")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert all(f"{name} is left out" in done.stderr for name in OTHERS)


def test_the_config_of_a_tokenizers_folder_is_not_the_models(model: Path, tmp_path: Path) -> None:
    """The folder of the tokenizer is often that of another model."""
    ours = to_megatron(model, tmp_path / "ours")
    other = Path(shutil.copytree(model, tmp_path / "other"))
    fields = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(
        json.dumps(fields | {"rope_parameters": {"rope_type": "default", "rope_theta": 7.0}})
    )
    back = to_hugging_face(ours, tmp_path / "back", other)
    assert (back / "config.json").read_bytes() == (model / "config.json").read_bytes()
