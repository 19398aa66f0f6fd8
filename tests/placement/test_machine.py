"""The coordination of a job's machines through its storage, a shared folder or a bucket."""

import os
import signal
import time
from pathlib import Path

import pytest

from baton.infra.placement.config import MACHINE_FAULT
from baton.infra.placement.machine import main
from baton.infra.storage import buckets
from tests.placement.machines import Machines, python
from tests.s3 import S3

KILLED = python("os.kill(os.getpid(), signal.SIGKILL)")
SLEEP = "time.sleep(600)"


@pytest.fixture(params=["folder", "bucket"])
def machines(request: pytest.FixtureRequest, tmp_path: Path, s3: S3) -> Machines:
    if request.param == "folder":
        return Machines(tmp_path, str(tmp_path / "shared"), {})
    return Machines(tmp_path, f"{s3.address}/{tmp_path.name}", s3.environment())


@pytest.fixture
def cloud(tmp_path: Path, s3: S3) -> Machines:
    """Machines that share only a bucket."""
    return Machines(tmp_path, f"{s3.address}/{tmp_path.name}", s3.environment())


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline, path
        time.sleep(0.05)


@pytest.mark.long
def test_faults_are_counted_whatever_machine_they_happen_on(machines: Machines) -> None:
    assert [machines.run(KILLED, restarts=2) for _ in range(3)] == [[MACHINE_FAULT], [MACHINE_FAULT], [1]]
    assert "placement.restarts allows 2, and all have been used" in machines.output()


def test_another_attempt_has_restarts_of_its_own(cloud: Machines) -> None:
    assert [cloud.run(KILLED, output=name, restarts=1) for name in ("a", "a", "b")] == [[75], [1], [75]]


def test_a_machine_that_is_taken_is_no_fault(cloud: Machines, tmp_path: Path) -> None:
    for number in range(2):
        (machine,) = cloud.start(python(f"open('{tmp_path}/{number}', 'w'); {SLEEP}"), restarts=1)
        wait_for(tmp_path / str(number))
        os.kill(machine.pid, signal.SIGTERM)
        assert machine.wait(60) == MACHINE_FAULT  # the exit code that makes SkyPilot restart the machine
    assert [cloud.run(KILLED, restarts=1) for _ in range(2)] == [[MACHINE_FAULT], [1]]


def test_a_stage_that_is_stopped_has_time_to_save(cloud: Machines, tmp_path: Path) -> None:
    saves = f"trap 'sleep 1; touch {tmp_path}/saved; exit 0' TERM; touch {tmp_path}/up; while :; do sleep 0.1; done"
    (machine,) = cloud.start(saves)
    wait_for(tmp_path / "up")
    os.kill(machine.pid, signal.SIGTERM)
    assert machine.wait(60) == 0
    assert (tmp_path / "saved").exists()


def test_what_a_person_must_change_ends_the_job_at_once(machines: Machines) -> None:
    assert machines.run("exit 3") == [3]


@pytest.mark.long
def test_what_fails_on_one_of_three_machines_ends_all_with_its_code(cloud: Machines) -> None:
    second_fails = python(f"time.sleep(1); rank == 1 and sys.exit(3); {SLEEP}")
    assert cloud.run(second_fails, nodes=3) == [3, 0, 0]
    assert cloud.output().count("has failed on another machine; stopping it here") == 2


@pytest.mark.long
def test_a_round_after_a_fault_sees_nothing_of_the_one_before(cloud: Machines) -> None:
    second_killed = python(f"time.sleep(1); rank == 1 and os.kill(os.getpid(), 9); {SLEEP}")
    assert cloud.run(second_killed, nodes=2, restarts=1) == [MACHINE_FAULT, 0]
    assert cloud.run(python("time.sleep(5)"), nodes=2, restarts=1) == [0, 0]
    assert cloud.run(second_killed, nodes=2, restarts=1) == [1, 0]


@pytest.mark.long
def test_a_fault_that_all_machines_see_counts_once(cloud: Machines) -> None:
    both = python("time.sleep(1); os.kill(os.getpid(), 9)")
    assert [cloud.run(both, nodes=2, restarts=1) for _ in range(2)] == [[MACHINE_FAULT, 0], [1, 0]]


def test_machines_that_end_well_do_not_wait_for_each_other(cloud: Machines) -> None:
    began = time.monotonic()
    assert cloud.run(python("time.sleep(3 * rank)"), nodes=2) == [0, 0]
    assert time.monotonic() - began < 60


def test_code_that_could_not_be_fetched_is_fetched_again(cloud: Machines) -> None:
    cloud.unpack = f"[ -e ~/tried ] || {{ touch ~/tried; exit 1; }}; {cloud.unpack}"
    assert cloud.run("exit 7") == [7]


def test_without_storage_nothing_is_restarted_and_the_reason_is_given(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(buckets, "PATIENCE_S", 0.1)
    environment = {"BATON_STORAGE": "s3://bucket/x", "FLYTE_AWS_ENDPOINT": "http://127.0.0.1:9"}
    environment |= {"FLYTE_AWS_ACCESS_KEY_ID": "a", "FLYTE_AWS_SECRET_ACCESS_KEY": "b", "BATON_START": "start"}
    environment |= {"BATON_ATTEMPT": "a", "BATON_NODES": "1", "BATON_RESTARTS": "3", "NODE_RANK": "0"}
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert main(137) == 1
    assert "there is no restart, since faults cannot be counted: s3://bucket/x" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["true", "exit 3", KILLED])
def test_nothing_is_left_on_a_machine(cloud: Machines, command: str) -> None:
    cloud.secrets["BATON_GOOGLE_KEY"] = '{"private_key": "a\\nb"}'
    cloud.run(f"cat $GOOGLE_APPLICATION_CREDENTIALS; mkdir $BATON_HOME; touch $BATON_HOME/file; {command}")
    assert '{"private_key": "a\\nb"}' in cloud.output()
    assert [*cloud.homes()[0].iterdir()] == []
