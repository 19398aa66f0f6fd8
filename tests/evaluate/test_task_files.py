"""The files of lm-eval's tasks travel in the spec."""

from pathlib import Path

import pytest

from infra.errors import Stopped
from tasks.evaluate.task_files import gathered, with_absolute_data


def test_files_that_are_too_large_for_a_spec_are_refused_with_a_way_out(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("task: mine\ndataset_kwargs: {data_files: test.jsonl}\n")
    (tmp_path / "test.jsonl").write_text("x" * 2_000_000)
    with pytest.raises(Stopped, match="exceed 1 MB in total: use a data set on the Hugging Face Hub"):
        gathered([str(tmp_path / "mine.yaml")])


@pytest.mark.parametrize("text", ["task: [", "task: mine\x00"])
def test_a_file_that_is_no_yaml_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "mine.yaml").write_text(text)
    with pytest.raises(Stopped, match=r"mine.yaml: cannot read this file of an lm-eval task"):
        gathered([str(tmp_path / "mine.yaml")])


def test_data_beside_the_yaml_is_found_from_anywhere(tmp_path: Path) -> None:
    (tmp_path / "test.jsonl").touch()
    named = {"test": "test.jsonl", "train": ["test.jsonl", "s3://bucket/train.jsonl"]}
    found = with_absolute_data({"task": "mine", "dataset_kwargs": {"data_files": named}}, tmp_path)
    here = str(tmp_path / "test.jsonl")
    assert found["dataset_kwargs"]["data_files"] == {"test": here, "train": [here, "s3://bucket/train.jsonl"]}
