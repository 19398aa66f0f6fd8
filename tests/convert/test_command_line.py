"""The command line reports bad input in one line, before it does any work."""

import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result
from safetensors.torch import save_file

from baton.tasks.convert.command import main
from tests.convert.test_round_trip import tensors

NOT_UTF8 = os.fsdecode(b"\xff")


def baton(*words: str | int | Path) -> Result:
    return CliRunner().invoke(main, [str(word) for word in words])


def refused(result: Result, words: str) -> None:
    """Check that a line with `words` is printed, and no traceback."""
    assert result.exit_code in (1, 2)
    assert isinstance(result.exception, SystemExit), result.exception
    assert words in result.output.splitlines()[-1]


@pytest.mark.parametrize("size", ["nan", "inf", "0", "-1", "1e300"])
def test_a_size_of_shards_that_is_no_size(size: str, models: Path, tmp_path: Path) -> None:
    result = baton("export", models / "ours", tmp_path / "target", "--max-shard-gb", size)
    refused(result, "'--max-shard-gb'")


@pytest.mark.parametrize("bound", ["nan", "inf"])
def test_a_bound_that_every_difference_is_within(bound: str, models: Path) -> None:
    refused(baton("audit", models / "ours", models / "theirs", "--bound", bound), "is not a finite number")


@pytest.mark.parametrize("target", ["folder", "missing/file.json"])
def test_a_file_for_the_comparison_that_cannot_be_written(target: str, models: Path, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    result = baton("audit", models / "ours", models / "theirs", "--json", tmp_path / target)
    refused(result, target.partition("/")[0])
    assert "weights" not in result.output  # nothing has been converted


def test_the_comparison_is_written(models: Path, tmp_path: Path) -> None:
    result = baton("audit", models / "ours", models / "theirs", "--json", tmp_path / "found.json", "--tokens", 8)
    assert result.exit_code == 0, result.output
    assert json.loads((tmp_path / "found.json").read_text())["argmax_agreement"] == 1


@pytest.mark.parametrize("preflight", [(), ("--preflight",)])
def test_names_that_are_not_utf8(preflight: tuple[str, ...], models: Path, tmp_path: Path) -> None:
    source = Path(shutil.copytree(models / "theirs", tmp_path / "theirs"))
    (source / NOT_UTF8).mkdir()
    (source / f"{NOT_UTF8}.txt").write_text("mine")
    result = baton("import", source, tmp_path / f"target{NOT_UTF8}", *preflight)
    assert (result.exit_code, result.exception) == (0, None), result.output
    assert "target\\udcff" in result.output


def test_a_file_that_is_called_as_the_record(models: Path, tmp_path: Path) -> None:
    source = Path(shutil.copytree(models / "theirs", tmp_path / "theirs"))
    (source / "record").write_text("mine")
    refused(baton("import", source, tmp_path / "target"), "record: a converted model has a folder of this name")
    tokenizer = tmp_path / "tokenizer"
    tokenizer.mkdir()
    (tokenizer / "record").write_text("mine")
    refused(baton("export", models / "ours", tmp_path / "back", "--tokenizer", tokenizer), "rename the file")
    assert not list(tmp_path.glob("*.partial"))


def test_what_is_not_finite_is_named(models: Path, tmp_path: Path) -> None:
    source = Path(shutil.copytree(models / "theirs", tmp_path / "theirs"))
    found = tensors(source)
    found["model.layers.1.mlp.up_proj.weight"][3, 4] = torch.nan
    found["model.norm.weight"][1] = -torch.inf
    save_file(found, source / "model.safetensors", metadata={"format": "pt"})
    result = baton("import", source, tmp_path / "target")
    assert result.exit_code == 0
    notes = [line for line in result.output.splitlines() if "NaN" in line]
    assert [note.split()[1] for note in notes] == ["model.layers.1.mlp.up_proj.weight", "model.norm.weight"]
