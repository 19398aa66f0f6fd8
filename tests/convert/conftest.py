"""A model in both formats, and both directions of the conversion."""

from pathlib import Path

import pytest
import torch

from tests.convert.models import make
from tests.convert.test_round_trip import to_megatron


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same model in both formats: `theirs` and `ours`. A test that changes a model copies it first."""
    root = tmp_path_factory.mktemp("models")
    make("qwen3", root / "theirs", torch.bfloat16)
    to_megatron(root / "theirs", root / "ours")
    return root


@pytest.fixture(params=["import", "export"])
def direction(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def source(direction: str, models: Path) -> Path:
    """The model to convert: the one of `models` in Hugging Face's or in Megatron's format."""
    return models / ("theirs" if direction == "import" else "ours")
