"""The connector's service with an API server that is slow, unreachable, or in a state that a test sets."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import grpc
import pytest

pytest.importorskip("sky", reason="SkyPilot is not in images/gpu.txt")
import yaml
from flyteidl.core import errors_pb2, literals_pb2
from flyteidl.core.execution_pb2 import TaskExecution
from mlflow import MlflowClient
from sky.exceptions import ResourcesUnavailableError
from sky.jobs.state import ManagedJobStatus
from sky.schemas.api.responses import ManagedJobRecord

from baton.infra.flyte.connector import SkyJob
from baton.infra.placement.config import NO_IMAGE
from tests.placement.api_server import ApiServer, api_server, until
from tests.placement.connector_service import DEADLINE_S, Connector, free_port
from tests.tracking.conftest import Server, empty_store, home, server, sleeping_server

__all__ = ["empty_store", "home", "server", "sleeping_server"]

PROMISED_S = 3.5  # the promised time of an answer, on a busy machine


@pytest.fixture(scope="module")
def both() -> Iterator[tuple[ApiServer, Connector]]:
    with api_server() as server:
        made = Connector(free_port(), server.url)
        try:
            yield server, made
        finally:
            made.kill()


@pytest.fixture
def sky(both: tuple[ApiServer, Connector]) -> ApiServer:
    both[0].forget()
    return both[0]


@pytest.fixture
def connector(both: tuple[ApiServer, Connector]) -> Connector:
    both[1].work, both[1].environment = str(uuid4()), {}
    return both[1]


@contextmanager
def answered_in_time() -> Iterator[None]:
    began = time.monotonic()
    yield
    assert time.monotonic() - began < PROMISED_S


def test_kubernetes_finds_it_healthy(connector: Connector) -> None:
    """The image has grpcio-health-checking (images/connector.txt); without it, the probes of connector.yaml fail."""
    health = pytest.importorskip("grpc_health.v1.health_pb2")
    stub = pytest.importorskip("grpc_health.v1.health_pb2_grpc").HealthStub(connector.channel)
    assert stub.Check(health.HealthCheckRequest(), timeout=DEADLINE_S).status == health.HealthCheckResponse.SERVING


def test_create_and_get_answer_at_once_while_skypilot_hangs(sky: ApiServer, connector: Connector) -> None:
    with sky.hanging("/api/health"):
        with answered_in_time():
            job = connector.create()
        for _ in range(2):
            with answered_in_time():
                assert connector.get(job).phase == TaskExecution.QUEUED
        assert not sky.jobs
    connector.reaches(job, TaskExecution.RUNNING)
    assert len(sky.jobs) == 1


def test_a_server_that_is_away_is_shown_and_logged_and_an_abort_works(tmp_path: Path) -> None:
    made = Connector(free_port(), f"http://127.0.0.1:{free_port()}", tmp_path / "log.txt")
    try:
        job = made.create()
        assert "is unreachable; retrying" in made.reaches(job, TaskExecution.WAITING_FOR_RESOURCES).message
        for _ in range(3):
            assert made.get(job).phase == TaskExecution.WAITING_FOR_RESOURCES
        made.delete(job)  # nothing was launched
        assert made.get(job).phase == TaskExecution.WAITING_FOR_RESOURCES
        log = (tmp_path / "log.txt").read_text()
        assert log.count("WAITING_FOR_RESOURCES: baton-pretrain-") == 1 and ": cancelled" in log
    finally:
        made.kill()


def test_a_launch_in_flight_is_found_by_the_connector_that_comes_after(sky: ApiServer, connector: Connector) -> None:
    job = connector.create()
    with sky.hanging("launch"):
        connector.get(job)
        until(sky.open_launches)
        connector.kill()
        connector.start()
        assert "being launched" in connector.get(job).message
    connector.reaches(job, TaskExecution.RUNNING)
    assert sky.asked.count("/jobs/launch") == 1


def test_a_job_that_is_being_launched_is_cancelled(sky: ApiServer, connector: Connector) -> None:
    job = connector.create()
    with sky.hanging("launch"):
        connector.get(job)
        until(sky.open_launches)
        with answered_in_time(), pytest.raises(grpc.RpcError, match="has not cancelled"):
            connector.delete(job)
    until(lambda: sky.statuses() == ["CANCELLED"])
    connector.delete(job)


def test_a_job_that_was_deleted_is_never_launched(sky: ApiServer, connector: Connector) -> None:
    job = connector.create()
    connector.delete(job)
    assert connector.get(job).phase == TaskExecution.ABORTED
    assert not sky.jobs


def test_two_executions_of_the_same_work_have_one_job(sky: ApiServer, connector: Connector) -> None:
    first, second = connector.create(), connector.create(placement={"infra": ["slurm/beta"]})
    connector.reaches(first, TaskExecution.RUNNING)
    connector.reaches(second, TaskExecution.RUNNING)
    assert len(sky.jobs) == 1


def test_the_job_of_two_executions_is_cancelled_with_the_last(sky: ApiServer, connector: Connector) -> None:
    first, second, third = (connector.create() for _ in range(3))
    for each in (first, second, third):
        connector.reaches(each, TaskExecution.RUNNING)
    connector.delete(first)
    connector.reaches(second, TaskExecution.RUNNING)
    connector.delete(third)
    assert sky.statuses() == ["RUNNING"]
    connector.delete(second)
    assert sky.statuses() == ["CANCELLED"]


def test_who_follows_a_job_that_is_cancelled_for_another_launches_it_anew(sky: ApiServer, connector: Connector) -> None:
    """The restarted connector has had no request of the second execution yet."""
    first, second = connector.create(), connector.create()
    connector.reaches(first, TaskExecution.RUNNING)
    connector.reaches(second, TaskExecution.RUNNING)
    connector.kill()
    connector.start()
    connector.delete(first)
    assert sky.statuses() == ["CANCELLED"]
    connector.reaches(second, TaskExecution.RUNNING)
    assert sky.statuses() == ["CANCELLED", "RUNNING"]


def test_an_attempt_that_has_failed_does_not_keep_the_next_one_s_job(sky: ApiServer, connector: Connector) -> None:
    first, second = connector.create(), connector.create()
    connector.reaches(first, TaskExecution.RUNNING)
    sky.end("FAILED_CONTROLLER")
    connector.reaches(first, TaskExecution.RETRYABLE_FAILED)
    connector.reaches(second, TaskExecution.RUNNING)
    connector.delete(second)
    assert sky.statuses() == ["FAILED_CONTROLLER", "CANCELLED"]


def test_of_two_jobs_of_one_name_the_first_goes_on(sky: ApiServer, connector: Connector) -> None:
    """A launch whose answer was lost is repeated, so two jobs exist."""
    job = connector.create()
    connector.reaches(job, TaskExecution.RUNNING)
    sky.jobs.append(sky.jobs[0].model_copy(update={"job_id": 2}))
    connector.kill()
    connector.start()
    connector.reaches(job, TaskExecution.RUNNING)
    assert sky.statuses() == ["RUNNING", "CANCELLED"]
    sky.jobs.reverse()
    sky.end("FAILED")
    sky.jobs.reverse()
    assert connector.reaches(job, TaskExecution.FAILED).message.startswith("job 1 failed")


def fragment(**more: Any) -> ManagedJobRecord:
    """Write the record that SkyPilot keeps of an interrupted submission."""
    return ManagedJobRecord(user_yaml="", **more)


@pytest.mark.parametrize(("status", "then"), [("PENDING", "CANCELLED"), ("CANCELLED", "CANCELLED")])
def test_a_submission_that_was_cut_off_does_not_block_its_stage(
    sky: ApiServer, connector: Connector, status: str, then: str
) -> None:
    job = connector.create()
    name = SkyJob.decode(job).name
    sky.jobs.append(fragment(job_id=1, job_name=name, status=ManagedJobStatus(status)))
    assert connector.reaches(job, TaskExecution.RUNNING).message == "job 2 running"
    assert sky.statuses() == [then, "RUNNING"]


def test_a_job_of_somebody_else_with_that_name_is_left_alone(sky: ApiServer, connector: Connector) -> None:
    job = connector.create()
    theirs = fragment(job_id=1, job_name=SkyJob.decode(job).name, status=ManagedJobStatus.RUNNING)
    sky.jobs.append(theirs.model_copy(update={"user_yaml": "name: x\n---\nrun: sleep 600\n"}))
    connector.reaches(job, TaskExecution.RUNNING)
    assert sky.statuses() == ["RUNNING", "RUNNING"]


def test_what_skypilot_waits_for_is_reported_with_the_cause(sky: ApiServer, connector: Connector) -> None:
    job = connector.create()
    connector.reaches(job, TaskExecution.RUNNING)
    prefix = "I 11-30 07:01:02.123 PID=7 recovery_strategy.py:1173] "
    sky.log = (
        f"{prefix}Failed to launch a cluster with error: sky.exceptions.CommandError: mount failed\n"
        f"{prefix}Retrying to launch the cluster in 61.3 seconds.\n"
    )
    sky.change("PENDING", schedule_state="ALIVE_BACKOFF")
    message = connector.reaches(job, TaskExecution.WAITING_FOR_RESOURCES).message
    assert message == (
        "job 1 waits for SkyPilot's next try; its launch failed: sky.exceptions.CommandError: mount failed; next try "
        "61 s after 07:01:02"
    )
    sky.change("STARTING", schedule_state="ALIVE")
    message = connector.reaches(job, TaskExecution.INITIALIZING).message
    assert message.startswith(
        "job 1 looking for capacity; its launch failed: sky.exceptions.CommandError: mount failed"
    )


def test_an_error_within_the_server_is_no_answer(sky: ApiServer, connector: Connector) -> None:
    """The answer of the server's own process was cut off on a busy machine."""
    job = connector.create()
    connector.reaches(job, TaskExecution.RUNNING)
    sky.fails = json.JSONDecodeError("Unterminated string starting at", "x" * 20, 18)
    until(lambda: "Unterminated string" in connector.get(job).message)
    sky.fails = None
    until(lambda: connector.get(job).message == "job 1 running")
    assert connector.get(job).phase == TaskExecution.RUNNING
    assert sky.statuses() == ["RUNNING"]


def test_what_skypilot_refuses_for_now_may_be_retried(sky: ApiServer, connector: Connector) -> None:
    sky.refuses = ResourcesUnavailableError("no capacity; token=hf_" + "Z" * 30)
    found = connector.reaches(connector.create(), TaskExecution.RETRYABLE_FAILED)
    assert "no capacity" in found.message
    assert "ZZZ" not in found.message


def test_what_skypilot_will_always_refuse_may_not(sky: ApiServer, connector: Connector) -> None:
    sky.refuses = ValueError("no such cloud")
    assert "no such cloud" in connector.reaches(connector.create(), TaskExecution.FAILED).message


def test_a_failed_job_tells_its_last_lines_its_place_and_its_recoveries(
    sky: ApiServer, connector: Connector, tmp_path: Path
) -> None:
    job = connector.create(str(tmp_path))
    connector.reaches(job, TaskExecution.RUNNING)
    sky.log = "".join(f"\x1b[36mline {number}\x1b[0m\n" for number in range(100)) + "HF_TOKEN=hf_" + "Z" * 30 + "\n"
    place = {"cloud": "Slurm", "region": "alpha", "cluster_resources": "1x(cpus=2)", "recovery_count": 2}
    sky.end("FAILED", failure_reason="exit code 1", **place)
    message = connector.reaches(job, TaskExecution.FAILED).message
    assert message.startswith("job 1 failed on Slurm/alpha (1x(cpus=2)), recovered 2 times\nexit code 1\n")
    assert "line 99\n" in message
    assert message.endswith("\nFull log: sky jobs logs 1")
    assert len(message.splitlines()) <= 8
    assert "ZZZ" not in message


def succeeded(sky: ApiServer, connector: Connector, folder: Path) -> bytes:
    """A job with a task's outputs, after it was moved once."""
    job = connector.create(str(folder))
    connector.reaches(job, TaskExecution.RUNNING)
    (folder / "outputs.pb").write_bytes(literals_pb2.LiteralMap().SerializeToString())
    (folder / "deck.html").write_text("<html>\n<body>\n<h1>Loss</h1></body></html>")
    sky.end("SUCCEEDED", cloud="Slurm", region="alpha", cluster_resources="1x(cpus=2)", recovery_count=1)
    return job


def test_the_deck_says_where_it_ran(sky: ApiServer, connector: Connector, tmp_path: Path) -> None:
    job = succeeded(sky, connector, tmp_path)
    connector.reaches(job, TaskExecution.SUCCEEDED)
    found = connector.reaches(job, TaskExecution.SUCCEEDED)  # the first answer may have been lost
    assert not found.HasField("outputs")  # Flyte finds the outputs in storage, with the deck beside them
    assert (tmp_path / "deck.html").read_text() == (
        "<html>\n<body><p>job 1 done on Slurm/alpha (1x(cpus=2)), recovered 1 times</p>\n<h1>Loss</h1></body></html>"
    )
    assert found.custom_info["recoveries"] == 1


def test_who_shares_a_job_has_its_outputs_and_its_deck(sky: ApiServer, connector: Connector, tmp_path: Path) -> None:
    (theirs := tmp_path / "theirs").mkdir()
    (ours := tmp_path / "ours").mkdir()
    connector.reaches(connector.create(str(theirs)), TaskExecution.RUNNING)
    connector.reaches(second := connector.create(str(ours)), TaskExecution.RUNNING)
    for name in ("deck.html", "outputs.pb"):
        (theirs / name).touch()
    sky.end("SUCCEEDED")
    connector.reaches(second, TaskExecution.SUCCEEDED)
    assert sorted(path.name for path in ours.iterdir()) == ["deck.html", "outputs.pb"]


def test_flyte_links_to_the_lineage_page(sky: ApiServer, connector: Connector) -> None:
    connector.environment = {"BATON_LINEAGE": "http://lineage.example/"}
    links = connector.reaches(connector.create(), TaskExecution.RUNNING).log_links
    assert {each.name: each.uri for each in links}["Lineage"] == (
        "http://lineage.example/lineage/executions/llm-production-f0123456789"
    )


@pytest.mark.long
def test_the_stage_s_record_says_where_it_ran(
    sky: ApiServer, connector: Connector, tmp_path: Path, server: Server
) -> None:
    connector.environment = {"MLFLOW_TRACKING_URI": server.uri, "MLFLOW_EXPERIMENT_NAME": "mine"}
    client = MlflowClient(server.uri)
    job = succeeded(sky, connector, tmp_path)
    tags = {"baton.execution": "llm-production-f0123456789", "baton.placed.job": str(sky.jobs[0].job_name)}
    made = client.create_run(client.create_experiment("mine"), tags=tags).info.run_id  # as the job does
    connector.reaches(job, TaskExecution.SUCCEEDED)
    told = {name: value for name, value in client.get_run(made).data.tags.items() if name.startswith("baton.placed.")}
    assert told == {
        "baton.placed.job": str(sky.jobs[0].job_name),
        "baton.placed.job_id": "1",
        "baton.placed.cloud": "Slurm",
        "baton.placed.region": "alpha",
        "baton.placed.resources": "1x(cpus=2)",
        "baton.placed.recoveries": "1",
    }


@pytest.mark.long
def test_a_store_that_is_away_keeps_no_job_from_its_end(sky: ApiServer, connector: Connector, tmp_path: Path) -> None:
    connector.environment = {"MLFLOW_TRACKING_URI": "http://127.0.0.1:9"}
    connector.reaches(succeeded(sky, connector, tmp_path), TaskExecution.SUCCEEDED)


def test_what_the_task_calls_curable_may_be_retried(sky: ApiServer, connector: Connector, tmp_path: Path) -> None:
    job = connector.create(str(tmp_path))
    connector.reaches(job, TaskExecution.RUNNING)
    error = errors_pb2.ContainerError(kind=errors_pb2.ContainerError.RECOVERABLE, message="Message:\n\n  Away: later")
    (tmp_path / "error.pb").write_bytes(errors_pb2.ErrorDocument(error=error).SerializeToString())
    sky.end("FAILED")
    assert "later" in connector.reaches(job, TaskExecution.RETRYABLE_FAILED).message


def test_the_job_is_of_the_execution_that_asks(sky: ApiServer, connector: Connector) -> None:
    """One template serves all executions of a version, each with its own placement."""
    connector.reaches(connector.create(placement={"infra": ["slurm/alpha"]}), TaskExecution.RUNNING)
    _head, task = yaml.safe_load_all(sky.jobs[0].user_yaml or "")
    assert task["envs"]["BATON_EXECUTION"] == "llm-production-f0123456789"
    assert task["envs"]["BATON_STORAGE"] == "s3://raw/baton"  # next to the raw data of the execution's pods
    assert task["envs"]["MLFLOW_EXPERIMENT_NAME"] == "of-the-task"
    assert set(task["secrets"]) >= {"HF_TOKEN", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"}
    assert NO_IMAGE not in str(task)
