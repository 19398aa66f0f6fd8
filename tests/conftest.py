"""Tests keep to themselves: a Baton home of their own, made before anything reads it, and no network."""

import os
import shutil
import tempfile

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
