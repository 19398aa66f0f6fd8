"""A store with two executions, recorded once; a page over it; PostgreSQL where it is asked for."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text
from starlette.testclient import TestClient

from infra.lineage.api import Lineage
from infra.lineage.app import alone
from tests.lineage.recorded import Stored, record
from tests.tracking.conftest import close, empty_store, home

__all__ = ["empty_store", "home"]


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory, empty_store: Path) -> Iterator[Stored]:
    """Recorded once for all tests that only look."""
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
    """The recorded store, as this process's own."""
    monkeypatch.setenv("BATON_HOME", str(recorded.home))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return recorded


@pytest.fixture
def lineage(store: Stored) -> Lineage:
    return Lineage()


@pytest.fixture
def page(store: Stored) -> TestClient:
    return TestClient(alone(), raise_server_exceptions=True)


class Postgres:
    """A throwaway cluster of Debian's PostgreSQL on a socket in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bin = next(iter(sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)), None)
        if self.bin is None:
            pytest.fail("PostgreSQL is not installed (Debian, Ubuntu: apt-get install postgresql)")

    def uri(self, database: str, user: str = "baton") -> str:
        return f"postgresql://{user}@/{database}?host={self.folder}"

    def start(self) -> None:
        if os.getuid() == 0:  # it refuses to run as root
            shutil.chown(self.folder, "postgres", "postgres")
        self._as_user("initdb", "-D", str(self.folder / "data"), "-U", "baton", "-A", "trust", "--no-sync")
        options = f"-k {self.folder} -c listen_addresses= -c fsync=off"
        log = str(self.folder / "log")
        self._as_user("pg_ctl", "-D", str(self.folder / "data"), "-w", "-l", log, "-o", options, "start")

    def stop(self) -> None:
        self._as_user("pg_ctl", "-D", str(self.folder / "data"), "-m", "immediate", "stop")

    def database(self, name: str) -> str:
        """A new, empty database; its address."""
        with create_engine(self.uri("postgres"), isolation_level="AUTOCOMMIT").connect() as connection:
            connection.execute(text(f"CREATE DATABASE {name}"))
        return self.uri(name)

    def _as_user(self, program: str, *words: str) -> None:
        command = [str(self.bin and self.bin / program), *words]
        if os.getuid() == 0:
            command = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups", *command]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/")


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Postgres]:
    folder = Path(tmp_path_factory.mktemp("pg"))
    for parent in folder.parents[:2]:
        parent.chmod(0o755)  # pytest's folders are the user's alone; the cluster has another user
    found = Postgres(folder)
    found.start()
    yield found
    found.stop()
