"""A tiny model shared by the tests of this folder."""

from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from tests.posttrain.tiny import tiny_model


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture
def tokenizer(model: Path) -> Any:
    """A tokenizer without a chat template."""
    return AutoTokenizer.from_pretrained(model)
