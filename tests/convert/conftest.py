"""Both directions of the conversion, for tests that hold for either. A test's module has the `models`."""

from pathlib import Path

import pytest


@pytest.fixture(params=["import", "export"])
def direction(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def source(direction: str, models: Path) -> Path:
    """What is read: a model of `models` in Hugging Face's format, or in Megatron's."""
    return models / ("theirs" if direction == "import" else "ours")
