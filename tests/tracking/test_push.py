"""Uploads that are interrupted, repeated, late or concurrent."""

import json
import os
import sqlite3
import ssl
import subprocess
import sys
import threading
import time
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from baton.infra.tracking.execution import begin_execution, current_execution, end_execution, flush
from baton.infra.tracking.push import newest_steps, push_execution
from baton.infra.tracking.record import tracked
from baton.infra.tracking.spool import (
    Execution,
    StageRun,
    executions,
    is_delivered,
    read_execution,
    read_stage,
    stage_folders,
    write_execution,
    write_stage,
)
from baton.infra.tracking.store import TrackingUnreachable, check_reachable
from baton.tasks.core.job import Job
from tests.tracking.conftest import curve, free_port, runs
from tests.tracking.one_execution import write_points

WAIT_S = 60.0
POINTS = [(step, 1 / (step + 1)) for step in range(40)]


def delivered(home: Path, tmp_path: Path) -> Path:
    """The folder of an execution that has ended and is in MLflow."""
    begin_execution("one", {"seed": 1})
    folder = current_execution("one")
    with tracked("pretrain", tmp_path / "job", spec={"lr": 0.1}, inputs={}):
        write_points(tmp_path / "job", range(40))
    flush(WAIT_S)
    end_execution()
    push_execution(folder)
    assert is_delivered(folder)
    return folder


@pytest.mark.parametrize("forgotten", ["the offset", "the run"])
def test_a_crash_between_a_push_and_its_note_does_no_harm(home: Path, tmp_path: Path, forgotten: str) -> None:
    folder = delivered(home, tmp_path)
    for note in folder.rglob("pushed.json"):
        if forgotten == "the run":
            note.unlink()
        else:
            note.write_text(json.dumps(json.loads(note.read_text()) | {"offset": 0, "sent": ""}))
    assert push_execution(folder)
    assert len(runs("execution")) == 1
    (run,) = runs("stage")
    assert curve(run, "loss") == POINTS
    assert run.info.status == "FINISHED"


@pytest.mark.parametrize("uri", ["http://127.0.0.1:{port}", "sqlite:////nowhere/at/all/x.db", "htp://host"])
def test_a_store_that_cannot_be_had_is_refused_at_the_start(
    home: Path, monkeypatch: pytest.MonkeyPatch, uri: str
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri.format(port=free_port()))
    with pytest.raises(TrackingUnreachable, match="unset MLFLOW_TRACKING_URI"):
        begin_execution("one", {})
    assert executions() == []


def test_what_a_lost_store_missed_is_delivered_by_the_next_run(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    id = begin_execution("one", {})
    with monkeypatch.context() as lost:
        lost.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{free_port()}")
        with tracked("pretrain", tmp_path / "job", spec={}, inputs={}):
            write_points(tmp_path / "job", range(40))
        started = time.monotonic()
        assert not end_execution()
        assert time.monotonic() - started < 10
    begin_execution("two", {})
    flush(WAIT_S)
    (run,) = runs("stage", id)
    assert curve(run, "loss") == POINTS
    assert [is_delivered(folder) for folder in executions()] == [True, False]


def test_the_loss_of_the_store_is_reported_once(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    begin_execution("one", {})
    flush(WAIT_S)
    capfd.readouterr()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{free_port()}")
    with tracked("pretrain", tmp_path / "job", spec={}, inputs={}):
        for _ in range(3):
            write_points(tmp_path / "job", range(2))
            flush(WAIT_S)
    output = capfd.readouterr()
    assert output.out == ""
    assert len(output.err.splitlines()) == 1
    assert "its records are kept in" in output.err


def test_a_pod_says_that_undelivered_records_are_lost_with_it(
    home: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FLYTE_INTERNAL_EXECUTION_ID", "e1")
    monkeypatch.setattr("baton.infra.tracking.execution.POD_WAIT_S", 3.0)
    begin_execution("one", {})
    flush(WAIT_S)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{free_port()}")
    assert not end_execution()
    output = capfd.readouterr().err
    assert "its records are on this pod's disk, and lost with it if" in output
    assert "did not accept are lost with this pod's disk" in output
    assert "the next run of the recipe finds and records it" in output
    assert "kept" not in output and "remain in" not in output and "Ctrl-C" not in output


def test_sync_says_what_it_cannot_deliver(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begin_execution("one", {})
    uri = f"http://127.0.0.1:{free_port()}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    end_execution()
    done = subprocess.run(
        [sys.executable, "-m", "baton", "tracking", "sync"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert uri in done.stderr and "is unreachable" in done.stderr and "Traceback" not in done.stderr


def test_a_store_that_was_emptied_during_a_run_is_filled_anew(home: Path, tmp_path: Path, empty_store: Path) -> None:
    begin_execution("one", {})
    with tracked("pretrain", tmp_path / "job", spec={}, inputs={}):
        write_points(tmp_path / "job", range(20))
        flush(WAIT_S)
        with sqlite3.connect(empty_store) as empty, sqlite3.connect(home / "mlflow.db") as store:
            empty.backup(store)
        write_points(tmp_path / "job", range(20, 40))
    flush(WAIT_S)
    (run,) = runs("stage")
    assert curve(run, "loss") == POINTS


@pytest.mark.parametrize("store", ["a file", pytest.param("a server", marks=pytest.mark.long)])
def test_a_kill_between_a_push_and_its_note_leaves_no_step_twice(
    home: Path, tmp_path: Path, request: pytest.FixtureRequest, store: str
) -> None:
    if store == "a server":
        request.getfixturevalue("server")
    folder = home / "executions" / "20260101-000000-000-abcd"
    job = tmp_path / "job"
    write_points(job, range(30))
    spooled(folder, 1, job)
    push_execution(folder)
    note = folder / "stage-0" / "pushed.json"
    note.write_text(json.dumps(json.loads(note.read_text()) | {"offset": 0}))  # the note before the push
    newest_steps.cache_clear()  # another process resumes from the checkpoint of step 10
    Job(job, "pretrain", "checkpoint", {}, {}).forget_after(10)
    write_points(job, range(11, 40))
    push_execution(folder)
    (run,) = runs("stage")
    assert curve(run, "loss") == POINTS


def spooled(folder: Path, stages: int, job: Path | None = None) -> None:
    """Return an execution that is running, with running stages."""
    write_execution(folder, Execution(folder.name, "one", {}, {}, "command", time.time()))
    for number in range(stages):
        run = StageRun(f"stage {number}", {}, {}, str(job) if job else None, {}, {}, time.time() + number)
        write_stage(folder / f"stage-{number}", run)


def test_an_execution_is_closed_after_its_stages(home: Path) -> None:
    """Otherwise an interruption would leave running stages under a closed execution, which is never checked again."""
    folder = home / "executions" / "20260101-000000-000-abcd"
    spooled(folder, 5)
    for stage in stage_folders(folder):
        write_stage(stage, replace(read_stage(stage), status="FINISHED", ended=time.time() + 10))
    write_execution(folder, replace(read_execution(folder), status="FINISHED", ended=time.time() + 10))
    sent = 0

    def progressed() -> None:
        nonlocal sent
        sent += 1
        if sent == 3:
            raise KeyboardInterrupt  # the time is over

    with pytest.raises(KeyboardInterrupt):
        push_execution(folder, progressed=progressed)
    assert runs("execution")[0].info.status == "RUNNING"
    assert push_execution(folder)
    assert [run.info.status for run in [*runs("execution"), *runs("stage")]] == ["FINISHED"] * 6


def test_a_note_that_a_power_cut_emptied_is_as_good_as_none(home: Path, tmp_path: Path) -> None:
    folder = delivered(home, tmp_path)
    for note in folder.rglob("pushed.json"):
        note.write_text("")
    assert push_execution(folder)
    assert len(runs("execution")) == 1
    assert curve(runs("stage")[0], "loss") == POINTS


def test_a_record_that_cannot_be_read_is_named_and_the_others_are_delivered(home: Path) -> None:
    broken, whole = (home / "executions" / f"20260101-000000-000-{name}" for name in ("aaaa", "bbbb"))
    spooled(broken, 1)
    spooled(whole, 1)
    (broken / "stage-0" / "run.json").write_text("")
    done = subprocess.run(
        [sys.executable, "-m", "baton", "tracking", "sync"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert f"{broken}/stage-0/run.json: the record cannot be read" in done.stderr
    assert is_delivered(whole) and not is_delivered(broken)


@pytest.fixture
def guarded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A store on a server that accepts only ada's password; yields the server's self-signed certificate."""
    certificate, key = tmp_path / "tls.crt", tmp_path / "tls.key"
    words = "openssl req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=127.0.0.1 -addext subjectAltName=IP:127.0.0.1"
    files = ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run([*words.split(), *files], check=True, capture_output=True)

    class Guard(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            good = self.headers.get("authorization") == f"Basic {b64encode(b'ada:secret').decode()}"
            self.send_response(200 if good else 401)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Guard) as server:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"https://127.0.0.1:{server.server_port}")
        monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "ada")
        monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "secret")
        yield certificate
        server.shutdown()


def test_the_check_verifies_the_server_as_mlflow_does(guarded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TrackingUnreachable, match="CERTIFICATE_VERIFY_FAILED"):
        check_reachable()
    monkeypatch.setenv("MLFLOW_TRACKING_SERVER_CERT_PATH", str(guarded))
    check_reachable()
    monkeypatch.delenv("MLFLOW_TRACKING_SERVER_CERT_PATH")
    monkeypatch.setenv("MLFLOW_TRACKING_INSECURE_TLS", "true")
    check_reachable()


def test_the_check_finds_a_wrong_password(guarded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_SERVER_CERT_PATH", str(guarded))
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "wrong")
    with pytest.raises(TrackingUnreachable, match=r"HTTP 401\)\. Set MLFLOW_TRACKING_USERNAME"):
        check_reachable()
    uri = os.environ["MLFLOW_TRACKING_URI"]
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri.replace("https://", "https://ada:secret@"))
    check_reachable()
