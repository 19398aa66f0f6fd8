"""Isolation of the tests: a separate Baton home, created before anything reads it, and no network."""

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from baton.infra.progress import say_once
from tests.source import ROOT

if TYPE_CHECKING:
    from tests.s3 import S3

# the duration of an example depends more on the load of the machine than on the code
settings.register_profile("baton", deadline=None)
settings.load_profile("baton")

_HOME = tempfile.mkdtemp(prefix="baton-tests-")
os.environ["BATON_HOME"] = _HOME
os.environ["HF_HUB_OFFLINE"] = "1"
# as in infra/process/launch.py: with both cores busy, threads that spin while they wait take five times as long as the
# work
os.environ["GOMP_SPINCOUNT"] = "1000"
os.environ.pop("MLFLOW_TRACKING_URI", None)


def pytest_unconfigure() -> None:
    shutil.rmtree(_HOME, ignore_errors=True)


@pytest.fixture(scope="session")
def vllm() -> None:
    """Skip a test if vLLM's engine cannot start: its CPU build starts everywhere, its CUDA build only with a GPU."""
    import torch

    if torch.version.cuda and not torch.cuda.is_available():
        pytest.skip("vLLM's CUDA build needs a GPU to start, and none is here")


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[S3]":
    """An S3 server with nothing but the objects of earlier tests."""
    from tests.s3 import s3_server

    with s3_server(tmp_path_factory.mktemp("s3")) as server:
        yield server


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the tests of complete workflows first. With the longest tests at the end, one worker would wait for the
    other."""
    items.sort(key=lambda item: {"recipes", "workflows"}.isdisjoint(item.path.parts))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Print a failed test at once, for .ci/run, which may stop a suite before its summary."""
    if report.failed and (names := os.environ.get("BATON_FAILED_TESTS")):
        with Path(names).open("a") as stream:
            stream.write(f"{report.nodeid}\n")


@pytest.fixture(autouse=True)
def nothing_said_yet() -> None:
    say_once.cache_clear()


@pytest.fixture(autouse=True)
def no_module_of_another_test() -> Iterator[None]:
    """Remove the modules of users' functions, since tests use the same file names for different functions."""
    path, before = [*sys.path], {*sys.modules}
    yield
    sys.path[:] = path
    for name in sys.modules.keys() - before:
        file = getattr(sys.modules[name], "__file__", None) or ""
        if file.startswith(tempfile.gettempdir()) and not file.startswith((sys.prefix, str(ROOT))):
            del sys.modules[name]
