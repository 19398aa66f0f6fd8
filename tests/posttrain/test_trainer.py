"""What the three post-training engines share."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tasks.job import StageError
from tasks.posttrain.spec import PostTrainSpec
from tasks.posttrain.trainer import storage_dtype


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_number_format_is_read_from_the_weights(tmp_path: Path, dtype: torch.dtype) -> None:
    save_file({"a": torch.zeros(2, dtype=dtype)}, tmp_path / "model.safetensors")

    assert storage_dtype(tmp_path) == dtype


def test_mixed_number_formats_are_refused(tmp_path: Path) -> None:
    save_file({"a": torch.zeros(2), "b": torch.zeros(2, dtype=torch.bfloat16)}, tmp_path / "model.safetensors")

    with pytest.raises(StageError, match="BF16, F32"):
        storage_dtype(tmp_path)


def test_every_problem_of_a_spec_is_found_at_once() -> None:
    spec = PostTrainSpec(data="chat", steps=5, warmup_steps=5, batch_size=10, micro_batch_size=4)

    assert [problem.path for problem in spec.problems()] == ["micro_batch_size", "warmup_steps"]
