"""Executions in separate processes that are killed, or that run at the same time."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from baton.infra.tracking.spool import executions, is_delivered
from tests.tracking.conftest import curve, runs
from tests.tracking.one_execution import write_points

WAIT_S = 60.0


def in_a_process(*words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.tracking.one_execution", *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


@pytest.mark.long
def test_two_executions_share_a_new_store(home: Path, tmp_path: Path) -> None:
    (home / "mlflow.db").unlink()  # neither process finds tables
    both = [in_a_process(name, str(tmp_path / name), "400") for name in ("one", "two")]
    assert [process.wait(timeout=200) for process in both] == [0, 0]
    subprocess.run([sys.executable, "-m", "baton", "tracking", "sync"], check=True)
    assert {run.data.tags["baton.name"] for run in runs("execution")} == {"one", "two"}
    children = runs("stage")
    assert len(children) == 2
    assert all([step for step, _ in curve(run, "loss")] == list(range(400)) for run in children)


def test_a_process_killed_while_it_makes_the_store_leaves_none(home: Path, tmp_path: Path) -> None:
    (home / "mlflow.db").unlink()
    process = in_a_process("doomed", str(tmp_path / "job"), "3", "hang")
    while not (home / "mlflow.db.new").exists():
        assert process.poll() is None
        time.sleep(0.01)
    process.kill()
    process.wait()
    assert not (home / "mlflow.db").exists()
    subprocess.run([sys.executable, "-m", "baton", "tracking", "sync"], check=True)
    assert runs("execution")[0].info.status == "KILLED"


def test_a_killed_process_is_seen_as_killed_and_its_metrics_arrive(home: Path, tmp_path: Path) -> None:
    process = in_a_process("doomed", str(tmp_path / "job"), "40", "hang")
    assert process.stdout is not None and process.stdout.readline() == "pushed\n"
    write_points(tmp_path / "job", range(40, 45))
    killed = time.time()
    process.kill()
    process.wait()
    done = subprocess.run(
        [sys.executable, "-m", "baton", "tracking", "sync"], capture_output=True, text=True, check=True
    )
    assert "delivered" in done.stdout
    (parent,), (run,) = runs("execution"), runs("stage")
    assert (parent.info.status, run.info.status) == ("KILLED", "KILLED")
    assert [step for step, _ in curve(run, "loss")] == list(range(45))
    assert killed - 5 < parent.info.end_time / 1000 < killed + 1  # the time of its last heartbeat
    assert parent.data.metrics["duration_s"] > 1


def test_sigterm_at_any_moment_leaves_a_spool_that_can_be_delivered(home: Path, tmp_path: Path) -> None:
    process = in_a_process("doomed", str(tmp_path / "job"), "40", "hang")
    assert process.stdout is not None and process.stdout.readline()
    os.kill(process.pid, signal.SIGTERM)
    process.wait(timeout=WAIT_S)
    subprocess.run([sys.executable, "-m", "baton", "tracking", "sync"], check=True)
    assert runs("execution")[0].info.status == "KILLED"


def test_a_run_from_the_cache_is_delivered_whole_before_its_process_ends(home: Path, tmp_path: Path) -> None:
    assert in_a_process("again", str(tmp_path), "17", "cached").wait(timeout=200) == 0
    (parent,) = runs("execution")
    assert parent.info.status == "FINISHED"
    assert [run.info.status for run in runs("stage")] == ["FINISHED"] * 17
    (folder,) = executions()
    assert is_delivered(folder)
