"""One Flyte execution whose pods share only MLflow's server; each pod is a process with its own home."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import grpc
import pytest
from flyteidl.admin.execution_pb2 import Execution, ExecutionClosure, WorkflowExecutionGetRequest
from flyteidl.admin.version_pb2 import GetVersionResponse
from flyteidl.core.execution_pb2 import WorkflowExecution
from flyteidl.service import admin_pb2_grpc
from flytekit.exceptions.user import FlyteRecoverableException
from mlflow import MlflowClient
from mlflow.entities import Run

from baton.infra.flyte.executions import LOST_S, close_ended
from baton.infra.tracking.execution import begin_execution
from baton.infra.tracking.store import TrackingUnreachable, tracking_uri
from tests.tracking.conftest import Server, curve, free_port, runs

pytestmark = pytest.mark.long

WAIT_S = 500.0


@pytest.fixture(scope="module", autouse=True)
def server(empty_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The server of all tests."""
    store = tmp_path_factory.mktemp("server") / "server.db"
    shutil.copy(empty_store, store)
    found = Server(store, free_port())
    with pytest.MonkeyPatch.context() as patch:
        # the execution of an earlier test, which would take precedence over Flyte's
        patch.delenv("BATON_EXECUTION", raising=False)
        patch.setenv("MLFLOW_TRACKING_URI", found.uri)
        patch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "30")  # the machine may be busy
        found.start()
        yield found
        found.kill()


@dataclass(frozen=True)
class Flyte:
    """One execution of a cluster, and its runs in MLflow."""

    folder: Path
    id: str

    def pod(self, name: str, title: str, *words: str, attempt: int = 0) -> "subprocess.Popen[str]":
        home = self.folder / f"{name}-{attempt}"
        home.mkdir()
        own = {"ID": self.id, "PROJECT": "llm", "DOMAIN": "production"}
        environment = {f"FLYTE_INTERNAL_EXECUTION_{word}": value for word, value in own.items()}
        environment |= {"FLYTE_ATTEMPT_NUMBER": str(attempt), "BATON_HOME": str(home)}
        prefix = ["--raw-output-data-prefix", f"s3://flyte/raw/ab/{self.id}-{name}-{attempt}"]
        archive = ["--dynamic-addl-distro", "s3://flyte/ab/fast0c0ffee.tar.gz"]
        return subprocess.Popen(
            [sys.executable, "-m", "tests.tracking.one_pod", title, *(words or ("job-0",)), *prefix, *archive],
            env=os.environ | environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def ran(self, *words: str, attempt: int = 0) -> None:
        self.pod(*words, attempt=attempt).wait(WAIT_S)

    def killed(self, *words: str) -> None:
        """Start a pod, and kill it after it has reported its stage."""
        process = self.pod(*words, "hang")
        assert process.stdout is not None and process.stdout.readline() == "pushed\n"
        process.kill()
        process.wait()

    def parents(self) -> list[Run]:
        return runs("execution", f"llm-production-{self.id}")

    def stages(self) -> list[Run]:
        return runs("stage", f"llm-production-{self.id}")


@pytest.fixture
def flyte(tmp_path: Path) -> Flyte:
    return Flyte(tmp_path, f"f{uuid4().hex[:9]}")


def test_pods_that_start_at_one_moment_stand_under_one_parent(flyte: Flyte) -> None:
    names = ["corpus", "evaluate", "evaluate"]  # one engine may be used twice
    started = [flyte.pod(f"n0-0-dn{number}", name, f"{name}-{number}") for number, name in enumerate(names)]
    started.append(flyte.pod("n0", "", "", "begin"))
    assert [each.wait(WAIT_S) for each in started] == [0] * 4
    (parent,) = flyte.parents()
    assert parent.data.tags["baton.name"] == "nightly"
    assert parent.data.params["pretrain.steps"] == "3"
    assert parent.data.tags["mlflow.source.git.commit"] == "fast0c0ffee"
    assert parent.info.status == "RUNNING"  # more stages may follow
    stages = flyte.stages()
    assert sorted(str(run.info.run_name) for run in stages) == names
    assert {run.data.tags["mlflow.parentRunId"] for run in stages} == {parent.info.run_id}
    assert {run.info.status for run in stages} == {"FINISHED"}


def test_the_last_stage_closes_the_execution(flyte: Flyte) -> None:
    flyte.ran("n0", "", "", "begin")
    flyte.ran("n0-0-dn9", "report", "report-0", "last")
    (parent,) = flyte.parents()
    assert parent.info.status == "FINISHED"
    assert (parent.info.run_name or "").startswith("nightly ")
    assert flyte.stages()[0].data.tags["baton.name"] == "nightly"


def test_a_last_pod_without_a_stage_closes_it_too(flyte: Flyte) -> None:
    """An example is the pod that reports the end of continuous training. Until then no other execution may work on the
    model."""
    flyte.ran("n0", "", "", "begin")
    flyte.ran("n0-0-dn7", "", "", "last")
    assert [run.info.status for run in flyte.parents()] == ["FINISHED"]


def test_a_killed_attempt_is_ended_by_the_next(flyte: Flyte) -> None:
    flyte.killed("n0-0-dn3", "pretrain", "pretrain-0")
    flyte.ran("n0-0-dn3", "pretrain", "pretrain-0", "fail", attempt=1)
    assert [run.info.status for run in flyte.stages()] == ["KILLED", "FAILED"]
    assert f"{flyte.id}-n0-0-dn3-1 continued" in flyte.stages()[0].data.tags["baton.error"]
    assert flyte.parents()[0].info.status == "FAILED"
    flyte.ran("n0-0-dn3", "pretrain", "pretrain-0", attempt=2)
    *_, done = flyte.stages()
    assert done.info.status == "FINISHED"
    assert len(curve(done, "loss")) == 3
    assert [run.info.status for run in flyte.parents()] == ["RUNNING"]  # opened again


def test_a_pod_that_was_taken_for_lost_and_lives_on_ends_without_an_error(flyte: Flyte) -> None:
    lost = flyte.pod("n0-0-dn3", "pretrain", "pretrain-0", "live on")
    assert lost.stdout is not None and lost.stdout.readline() == "pushed\n"
    flyte.ran("n0-0-dn3", "pretrain", "pretrain-0", attempt=1)
    assert [(run.info.status, "baton.error" in run.data.tags) for run in flyte.stages()] == [
        ("KILLED", True),
        ("FINISHED", False),
    ]
    lost.communicate("\n", WAIT_S)
    assert [(run.info.status, "baton.error" in run.data.tags) for run in flyte.stages()] == [("FINISHED", False)] * 2


def test_an_abort_is_recorded_though_mlflow_answers_late(
    flyte: Flyte, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pod waits for as long as Kubernetes allows."""
    monkeypatch.setenv("BATON_STOP_GRACE_S", "120")
    pod = flyte.pod("n0-0-dn3", "pretrain", "pretrain-0", "hang")
    assert pod.stdout is not None and pod.stdout.readline() == "pushed\n"
    assert server.process is not None
    os.killpg(server.process.pid, signal.SIGSTOP)
    try:
        pod.send_signal(signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            pod.wait(10)
    finally:
        os.killpg(server.process.pid, signal.SIGCONT)
    pod.wait(WAIT_S)
    assert [run.info.status for run in [*flyte.parents(), *flyte.stages()]] == ["KILLED", "KILLED"]


def test_a_stage_is_closed_before_its_execution(flyte: Flyte, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Therefore Kubernetes may kill the pod at any moment."""
    monkeypatch.setenv("BATON_STOP_GRACE_S", "120")
    pod = flyte.pod("n0-0-dn3", "pretrain", "pretrain-0", "hang")
    assert pod.stdout is not None and pod.stdout.readline() == "pushed\n"
    pod.send_signal(signal.SIGTERM)
    while pod.poll() is None:
        (parent,), (stage,) = flyte.parents(), flyte.stages()  # the order matters
        assert parent.info.status == "RUNNING" or stage.info.status == "KILLED"
    assert flyte.parents()[0].info.status == "KILLED"


def test_sync_closes_a_running_stage_of_an_execution_that_is_closed(flyte: Flyte) -> None:
    flyte.killed("n0-0-dn3", "pretrain", "pretrain-0")
    (parent,) = flyte.parents()
    MlflowClient().set_terminated(parent.info.run_id, "KILLED")
    assert flyte.id in str(close_ended(MlflowClient()))
    (stage,) = flyte.stages()
    assert stage.info.status == "KILLED" and stage.info.start_time <= stage.info.end_time
    assert flyte.id not in str(close_ended(MlflowClient()))


@pytest.mark.parametrize("joins", ["before", "after"])
def test_an_execution_stays_failed_when_its_other_pods_are_ended(flyte: Flyte, joins: str) -> None:
    def fail() -> None:
        flyte.ran("n0-0-dn1", "rows", "rows-0", "fail")

    if joins == "after":
        fail()
    other = flyte.pod("n0-0-dn0", "corpus", "corpus-0", "hang")
    assert other.stdout is not None and other.stdout.readline() == "pushed\n"
    if joins == "before":
        fail()
    assert [run.info.status for run in flyte.parents()] == ["FAILED"]
    other.send_signal(signal.SIGINT)
    other.wait(WAIT_S)
    (parent,) = flyte.parents()
    assert parent.info.status == "FAILED"
    assert sorted(run.info.status for run in flyte.stages()) == ["FAILED", "KILLED"]
    (failed,) = (run for run in flyte.stages() if run.info.status == "FAILED")
    assert parent.info.end_time == failed.info.end_time


class Admin(admin_pb2_grpc.AdminServiceServicer):
    """A replacement for Flyte's admin service that reports the state of an execution."""

    def __init__(self, phase: int, started: bool) -> None:
        self.phase, self.started = phase, started

    def GetVersion(self, request: object, _: object) -> GetVersionResponse:
        return GetVersionResponse()

    def GetExecution(self, request: WorkflowExecutionGetRequest, _: object) -> Execution:
        found = Execution(id=request.id, closure=ExecutionClosure(phase=self.phase))
        if self.started:
            found.closure.started_at.GetCurrentTime()
        return found


@contextmanager
def admin(phase: int, started: bool = True) -> Iterator[str]:
    server = grpc.server(futures.ThreadPoolExecutor(2))
    admin_pb2_grpc.add_AdminServiceServicer_to_server(Admin(phase, started), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(None)


def sync(flyte: Flyte, address: str) -> None:
    assert synced(flyte, address).returncode == 0


def synced(flyte: Flyte, address: str) -> "subprocess.CompletedProcess[str]":
    config = flyte.folder / "flyte.yaml"
    config.write_text(f"admin:\n  endpoint: dns:///{address}\n  insecure: true\n")
    environment = os.environ | {"FLYTECTL_CONFIG": str(config)}
    command = [sys.executable, "-m", "baton", "tracking", "sync"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_a_reader_sees_from_flyte_that_an_execution_is_over(flyte: Flyte) -> None:
    flyte.killed("n0-0-dn3", "pretrain", "pretrain-0")
    for phase, status in ((WorkflowExecution.RUNNING, "RUNNING"), (WorkflowExecution.ABORTED, "KILLED")):
        with admin(phase) as address:
            sync(flyte, address)
        assert [run.info.status for run in [*flyte.parents(), *flyte.stages()]] == [status, status]


def test_an_execution_that_is_aborted_while_it_waits_has_ended_all_the_same(flyte: Flyte) -> None:
    """The pods that reported have ended, and the next one does not exist yet, or was never started."""
    flyte.ran("n0", "", "", "begin")
    (before,) = flyte.parents()
    assert before.info.status == "RUNNING"
    with admin(WorkflowExecution.ABORTED, started=False) as address:
        sync(flyte, address)
    (after,) = flyte.parents()
    assert after.info.status == "KILLED"
    assert after.info.end_time >= after.info.start_time


def test_a_flyte_that_cannot_be_asked_is_reported_and_fails(flyte: Flyte) -> None:
    """An example is a wrong name of a Helm release. The CronJob's exit code reports the failure."""
    flyte.ran("n0", "", "", "begin")
    done = synced(flyte, f"127.0.0.1:{free_port()}")
    assert done.returncode == 1 and "Flyte's admin at 127.0.0.1:" in done.stderr and "refused" in done.stderr
    assert "FLYTE_PLATFORM_URL" in done.stderr and "Traceback" not in done.stderr
    assert [run.info.status for run in flyte.parents()] == ["RUNNING"]


def test_a_store_that_is_away_is_an_error_that_flyte_may_retry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setattr("baton.infra.tracking.outage.PATIENCE_S", 0.0)
    with pytest.raises(TrackingUnreachable):
        begin_execution("nightly", {})
    monkeypatch.setenv("FLYTE_INTERNAL_EXECUTION_ID", "f0")
    with pytest.raises(FlyteRecoverableException, match="is unreachable"):
        begin_execution("nightly", {})


def baton_experiment(client: MlflowClient) -> str:
    found = client.get_experiment_by_name("baton")
    return str(found.experiment_id if found else client.create_experiment("baton"))


def test_without_flyte_s_word_silence_closes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    client = MlflowClient(tracking_uri())
    experiment = baton_experiment(client)
    for name, age_s in (("quiet", LOST_S + 60), ("waiting", 60.0)):
        tags = {"baton.execution": name, "baton.role": "execution", "baton.flyte": f"llm/production/{name}"}
        client.create_run(experiment, int((time.time() - age_s) * 1000), tags)
    assert close_ended(client) == ["quiet"]
    assert [runs("execution", name)[0].info.status for name in ("quiet", "waiting")] == ["KILLED", "RUNNING"]


def test_a_stage_whose_execution_was_deleted_for_good_does_not_stop_the_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    client = MlflowClient(tracking_uri())
    left = {"baton.role": "stage", "baton.execution": "gone", "mlflow.parentRunId": "0" * 32}
    client.create_run(baton_experiment(client), int(time.time() * 1000), left)
    assert close_ended(client) == []


def test_a_run_that_was_merged_and_reopened_is_no_execution(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two pods started one execution. One merged the other's run, which the other then set to running again."""
    monkeypatch.setenv("HOME", str(tmp_path))
    client = MlflowClient(tracking_uri())
    experiment = baton_experiment(client)
    tags = {"baton.role": "execution", "baton.flyte": "llm/production/merged"}
    made = client.create_run(experiment, int(time.time() * 1000), tags)
    assert close_ended(client) == []
    assert client.get_run(made.info.run_id).info.status == "FINISHED"
