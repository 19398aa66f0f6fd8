"""`--preflight` prints the files to read and to write, and all problems, and writes nothing."""

import json
from pathlib import Path

import torch
from click.testing import CliRunner, Result

from baton.tasks.convert.command import main
from tests.convert.models import make
from tests.convert.test_round_trip import change_config, tensors


def preflight(*words: object) -> Result:
    return CliRunner().invoke(main, [str(word) for word in (*words, "--preflight")])


def test_it_says_what_is_read_and_written(direction: str, source: Path, models: Path, tmp_path: Path) -> None:
    found = preflight(direction, source, tmp_path / "target", "--dtype", "fp32")
    assert found.exit_code == 0, found.output
    elements = sum(tensor.numel() for tensor in tensors(models / "theirs").values())
    assert f"reads {source}" in found.output
    assert "family qwen3, 3 layers, hidden size 72, vocabulary 101" in found.output
    assert "by dtype: bfloat16 " in found.output
    assert f"{4 * elements} bytes of weights as float32" in found.output
    for file in ("config.json", "generation_config.json"):
        assert f"{file} (" in found.output
    assert list(tmp_path.iterdir()) == []


def test_it_says_every_problem(models: Path, tmp_path: Path) -> None:
    model = make("qwen3", tmp_path / "model", torch.bfloat16)
    change_config(model, hidden_size="72", vocab_size=-1)
    (model / "manifest.json").write_text(json.dumps({"kind": "torn"}))
    (tmp_path / "target").mkdir()
    found = preflight("import", model, tmp_path / "target")
    assert found.exit_code == 1
    errors = [line for line in found.output.splitlines() if line.startswith("error: ")]
    assert len(errors) == 3
    assert "exists" in errors[0]
    assert "manifest.json" in errors[1]
    assert "vocab_size is -1" in errors[2] and "hidden_size is '72'" in errors[2]


def test_it_says_why_there_will_be_no_model_json(tmp_path: Path) -> None:
    model = make("olmo2", tmp_path / "model", torch.bfloat16)
    found = preflight("import", model, tmp_path / "target")
    assert found.exit_code == 0
    assert "note: model.json is left out" in found.output
    assert f"writes {tmp_path / 'target' / 'model.json'}" not in found.output


def test_it_finds_an_adapter_beside_the_tokenizer(models: Path, tmp_path: Path) -> None:
    (tmp_path / "tokenizer").mkdir()
    (tmp_path / "tokenizer" / "adapter_config.json").write_text("{}")
    found = preflight("export", models / "ours", tmp_path / "target", "--tokenizer", tmp_path / "tokenizer")
    assert found.exit_code == 1
    assert "has an adapter (adapter_config.json)" in found.output


def test_it_finds_a_partial_folder_that_is_not_ours(direction: str, source: Path, tmp_path: Path) -> None:
    (tmp_path / "target.partial").mkdir()
    (tmp_path / "target.partial" / "precious").write_text("x")
    found = preflight(direction, source, tmp_path / "target")
    assert found.exit_code == 1
    assert "is not an unfinished conversion" in found.output


def test_a_target_that_cannot_be_made(models: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    found = preflight("import", models / "theirs", tmp_path / "file" / "target")
    assert found.exit_code == 1
    assert "which is not a writable folder" in found.output
