"""A store with two executions, recorded once; the pages that show it; PostgreSQL on request."""

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from baton.infra.lineage.api import Lineage
from baton.infra.lineage.app import alone
from tests.lineage.postgres import Postgres
from tests.lineage.recorded import Stored, record
from tests.tracking.conftest import close, empty_store, home

__all__ = ["empty_store", "home"]


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory, empty_store: Path) -> Iterator[Stored]:
    """The recorded executions, for all tests that only read."""
    path = tmp_path_factory.mktemp("recorded") / "baton"
    path.mkdir()
    shutil.copy(empty_store, path / "mlflow.db")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BATON_HOME", str(path))
        patch.setattr(sys, "argv", ["/x/pyflyte", "run", "workflows/pretrain_to_rl.py", "--recipe", "a recipe.yaml"])
        patch.delenv("BATON_EXECUTION", raising=False)
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        found = record()
        close()
    yield found


@pytest.fixture
def store(recorded: Stored, monkeypatch: pytest.MonkeyPatch) -> Stored:
    """The recorded store in the Baton home of this process."""
    monkeypatch.setenv("BATON_HOME", str(recorded.home))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return recorded


@pytest.fixture
def lineage(store: Stored) -> Lineage:
    return Lineage()


@pytest.fixture
def page(store: Stored) -> TestClient:
    return TestClient(alone(), raise_server_exceptions=True)


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    with Postgres() as cluster:
        yield cluster
