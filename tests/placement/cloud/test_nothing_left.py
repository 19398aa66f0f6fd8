"""No machine is left behind: however a run ends, a minute later none is running. A machine that is left behind costs
money."""

import os
import re
import signal
from pathlib import Path

import grpc
import pytest
from flyteidl.core.execution_pb2 import TaskExecution

from tests.placement.cloud.account import KEYS
from tests.placement.cloud.jobs import MIDDLE, nothing_is_left, rented, storage
from tests.placement.cloud.world import Cloud
from tests.placement.connector_service import Connector, free_port
from tests.placement.runs import SHORT, Run, done, start
from tests.placement.world import API_SERVER, start_api_server, stop_api_server, until

pytestmark = [pytest.mark.cloud, pytest.mark.timeout(1200)]
LONG = MIDDLE | {"steps": 20_000}


def training(aws: Cloud, folder: Path, step: int = 20, **limits: float) -> Run:
    """A run that is training on a machine."""
    run = start(folder, LONG, rented(**limits))
    run.reaches(step)
    assert len(aws.instances()) == 1
    return run


def test_after_success(aws: Cloud, tmp_path: Path) -> None:
    done(start(tmp_path, SHORT, rented()))
    nothing_is_left(aws)


def test_after_a_failure(aws: Cloud, tmp_path: Path) -> None:
    wrong = {"layout": {"micro_batch": 4, "device": "H100"}}  # only the machine can detect this
    run = start(tmp_path, SHORT, wrong, rented())
    assert run.ends() == 1
    nothing_is_left(aws)


def test_after_ctrl_c(aws: Cloud, tmp_path: Path) -> None:
    run = training(aws, tmp_path)
    run.ctrl_c()
    assert run.ends(120) == 1
    nothing_is_left(aws)


def test_after_ctrl_c_while_a_machine_is_looked_for(aws: Cloud, tmp_path: Path) -> None:
    aws.capacity({"us-east-1": 0, "us-west-2": 0, "eu-west-1": 0})
    run = start(tmp_path, LONG, rented())
    until(lambda: "looking for capacity" in run.output(), "the job looks for a machine", 180)
    run.ctrl_c()
    assert run.ends(120) == 1
    aws.capacity({})
    nothing_is_left(aws)


def test_after_a_killed_client_and_the_same_command(aws: Cloud, tmp_path: Path) -> None:
    first = training(aws, tmp_path)
    first.process.send_signal(signal.SIGKILL)
    first.process.wait()
    (machine,) = aws.instances()
    job = re.findall(r"job \d+ running", first.output())[-1]
    again = start(tmp_path, LONG, rented())
    until(lambda: job in again.output(), "the job is found", 180)
    assert [each.id for each in aws.instances()] == [machine.id]
    again.ctrl_c()
    assert again.ends(120) == 1
    nothing_is_left(aws)


def test_after_a_restart_of_the_server(aws: Cloud, tmp_path: Path) -> None:
    run = start(tmp_path, MIDDLE, rented())
    run.reaches(100)
    stop_api_server()
    start_api_server()
    done(run)
    nothing_is_left(aws)


def test_after_a_restart_of_the_server_in_the_middle_of_a_submission(aws: Cloud, tmp_path: Path) -> None:
    run = start(tmp_path, SHORT, rented())
    until(lambda: "pretrain: job" in run.output(), "the job is submitted", 180)
    stop_api_server()
    start_api_server()
    done(run)
    nothing_is_left(aws)


@pytest.mark.parametrize(
    "limit", [{"max_price_per_run": 0.0005}, {"time_limit_h": 0.02}], ids=lambda each: next(iter(each))
)
def test_after_a_limit(aws: Cloud, tmp_path: Path, limit: dict[str, float]) -> None:
    """One minute of a machine that costs $0.03 an hour is $0.0005."""
    run = start(tmp_path, LONG, rented(**limit))
    assert run.ends(900) == 1
    assert next(iter(limit)) in run.output()
    nothing_is_left(aws)


def test_after_the_client_is_killed_for_good(aws: Cloud, tmp_path: Path) -> None:
    """The job ends by itself, and its machine ends with it."""
    run = start(tmp_path, MIDDLE, rented())
    run.reaches(20)
    os.kill(run.process.pid, signal.SIGKILL)
    until(aws.is_empty, "the job's end", 900)


def is_cancelled(connector: Connector, job: bytes) -> bool:
    """Request the cancellation as Flyte's propeller does, repeatedly until it is confirmed."""
    try:
        connector.delete(job)
    except grpc.RpcError:
        return False
    return True


def test_after_a_restart_of_the_connector_s_service(aws: Cloud, tmp_path: Path) -> None:
    """In an execution on a cluster, the new connector continues the job, and cancels it on request."""
    connector = Connector(free_port(), API_SERVER, tmp_path / "log.txt", KEYS)
    try:
        command = ["sh", "-c", "sleep 3000", "--raw-output-data-prefix", f"{storage()}/ab/f0-n0-0"]
        job = connector.create(f"{storage()}/out", rented()["placement"], command)
        connector.reaches(job, TaskExecution.RUNNING, timeout_s=300)
        (machine,) = aws.instances()
        connector.kill()
        connector.start()
        connector.reaches(job, TaskExecution.RUNNING)
        assert [each.id for each in aws.instances()] == [machine.id]
        connector.kill()
        connector.start()  # a connector that does not know the job
        until(lambda: is_cancelled(connector, job), "the cancellation")
        nothing_is_left(aws)
    finally:
        connector.kill()
