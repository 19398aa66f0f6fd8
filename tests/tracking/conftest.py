"""Real stores: an SQLite file that is created once and copied, and `mlflow server` processes on loopback."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from mlflow import MlflowClient
from mlflow.entities import Run

from baton.infra.tracking.execution import close_execution
from baton.infra.tracking.sqlite import make_tables
from baton.infra.tracking.store import prepare_client, tracking_uri

START_S = 120  # the start of a server on a busy machine


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An SQLite file with MLflow's tables and no rows."""
    prepare_client()
    path = tmp_path_factory.mktemp("store") / "mlflow.db"
    make_tables(f"sqlite:///{path}")
    return path


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, empty_store: Path) -> Iterator[Path]:
    """A separate Baton home with an empty store. Runs that a test leaves open are closed."""
    path = tmp_path / "baton"
    path.mkdir()
    shutil.copy(empty_store, path / "mlflow.db")
    monkeypatch.setenv("BATON_HOME", str(path))
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "5")
    monkeypatch.delenv("BATON_EXECUTION", raising=False)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    yield path
    close()


def close() -> None:
    """Close the execution and its thread before the environment refers to another store."""
    close_execution()
    for thread in threading.enumerate():
        if thread.name == "tracking":
            thread.join(START_S)


@dataclass
class Server:
    """An `mlflow server` process that can be killed and restarted on the same port and store."""

    store: Path
    port: int
    process: subprocess.Popen[bytes] | None = None

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        words = ["server", "--backend-store-uri", f"sqlite:///{self.store}", "--port", str(self.port), "--workers", "1"]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "mlflow", *words],
            cwd=self.store.parent,
            env=os.environ
            | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},  # MLflow's own jobs would be three more processes
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        deadline = time.monotonic() + START_S
        while not self._answers():
            assert self.process.poll() is None and time.monotonic() < deadline, "mlflow server did not start"
            time.sleep(0.2)

    def kill(self) -> None:
        if self.process is not None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(self.uri + "/health", timeout=2):
                return True
        except (urllib.error.URLError, OSError):
            return False


@pytest.fixture
def sleeping_server(home: Path, empty_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A server that MLFLOW_TRACKING_URI refers to and that is not started yet."""
    (tmp_path / "server").mkdir()
    store = tmp_path / "server" / "server.db"
    shutil.copy(empty_store, store)
    found = Server(store, free_port())
    monkeypatch.setenv("MLFLOW_TRACKING_URI", found.uri)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "30")  # the machine may be busy
    yield found
    close()
    found.kill()


@pytest.fixture
def server(sleeping_server: Server) -> Server:
    """The same server after its start."""
    sleeping_server.start()
    return sleeping_server


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def runs(role: str, execution: str | None = None) -> list[Run]:
    """Return the runs of a role ("execution" or "stage") in the store, oldest first."""
    client = MlflowClient(tracking_uri())
    experiment = client.get_experiment_by_name("baton")
    assert experiment is not None
    query = f"tags.`baton.role` = '{role}'" + (f" and tags.`baton.execution` = '{execution}'" if execution else "")
    return list(client.search_runs([experiment.experiment_id], query, order_by=["attributes.start_time ASC"]))


def curve(run: Run, name: str) -> list[tuple[int, float]]:
    """Return (step, value) of each point of a metric in the store."""
    history = MlflowClient(tracking_uri()).get_metric_history(run.info.run_id, name)
    return sorted((point.step, point.value) for point in history)
