"""Tests keep to themselves: a Baton home of their own, made before anything reads it, and no network."""

import os
import shutil
import tempfile

import pytest
from hypothesis import settings

# what a case may take says more about the machine's other work than about the code
settings.register_profile("baton", deadline=None)
settings.load_profile("baton")

_HOME = tempfile.mkdtemp(prefix="baton-tests-")
os.environ["BATON_HOME"] = _HOME
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.pop("MLFLOW_TRACKING_URI", None)


def pytest_unconfigure() -> None:
    shutil.rmtree(_HOME, ignore_errors=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whole runs of the workflow first: the longest tests at the end would have one worker wait for the other."""
    items.sort(key=lambda item: "workflows" not in item.path.parts)
