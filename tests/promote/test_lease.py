"""The lease on a model, in a registry that several machines share."""

import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from mlflow import MlflowClient

from baton.infra.flyte.executions import LOST_S
from baton.infra.tracking.store import tracking_uri
from baton.tasks.promote.lease import LEASE_S, LEASE_TAG, RETRY_S, acquire, release
from baton.workflows.continuous_training.lock import exclusive
from tests.tracking.conftest import Server, free_port

HOLD = (
    "import sys; from baton.workflows.continuous_training.lock import exclusive\n"
    "with exclusive('m', 'wait'): print('in', flush=True); sys.stdin.read()"
)


@pytest.fixture(scope="module", autouse=True)
def server(empty_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    store = tmp_path_factory.mktemp("server") / "server.db"
    shutil.copy(empty_store, store)
    found = Server(store, free_port())
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", found.uri)
        patch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "30")
        found.start()
        yield
        found.kill()


def flyte_run(execution: str, status: str, age_s: float) -> None:
    """Record an execution of a Flyte cluster that has been silent for this long."""
    client = MlflowClient(tracking_uri())
    found = client.get_experiment_by_name("baton")
    experiment = found.experiment_id if found else client.create_experiment("baton")
    when = int((time.time() - age_s) * 1000)
    tags = {"baton.execution": execution, "baton.role": "execution", "baton.flyte": f"llm/production/{execution}"}
    run = client.create_run(experiment, when, tags).info.run_id
    if status != "RUNNING":
        client.set_terminated(run, status, when)


def expire(name: str) -> None:
    """Let the lease expire, as if its holder had not renewed it."""
    client = MlflowClient(tracking_uri())
    told = client.get_registered_model(name).tags[LEASE_TAG]
    client.set_registered_model_tag(name, LEASE_TAG, told.replace('"until": ', '"until": 1 , "was": '))


def test_one_execution_has_it_until_it_gives_it_back() -> None:
    assert acquire("one", "first") is None
    assert acquire("one", "second") == "first"
    release("one", "second")  # not its own
    assert acquire("one", "first") is None
    release("one", "first")
    assert acquire("one", "second") is None


def test_what_was_not_renewed_is_taken_over() -> None:
    acquire("lost", "first")
    expire("lost")
    assert acquire("lost", "second") is None
    assert acquire("lost", "first") == "second"


@pytest.mark.parametrize(
    ("status", "age_s", "held"),
    [
        ("RUNNING", LOST_S / 2, True),  # it waits for a machine
        ("RUNNING", LOST_S * 2, False),
        ("FINISHED", 1.0, False),
        ("FAILED", 1.0, True),  # Flyte may try again
        ("FAILED", RETRY_S * 2, False),
    ],
)
def test_an_execution_of_many_pods_holds_it_as_long_as_it_goes_on(status: str, age_s: float, held: bool) -> None:
    name = f"{status}-{age_s:g}"
    flyte_run(name, status, age_s)
    acquire(name, name)
    expire(name)
    assert acquire(name, "another") == (name if held else None)


def test_a_run_elsewhere_is_seen_and_its_end_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another machine has another home, and so another lock file."""
    monkeypatch.setenv("BATON_HOME", str(tmp_path / "here"))
    monkeypatch.setenv("BATON_EXECUTION", "here")
    (tmp_path / "here").mkdir()
    environment = {"BATON_HOME": str(tmp_path / "there"), "BATON_EXECUTION": "there"}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        process = subprocess.Popen(
            [sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
    assert process.stdout and process.stdin and process.stdout.readline() == "in\n"
    with exclusive("m", "skip") as free:
        assert not free
    process.stdin.close()
    assert process.wait(LEASE_S) == 0
    with exclusive("m", "skip") as free:
        assert free
