"""Trackers beside MLflow, with their own libraries, offline."""

import json
import math
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from baton.infra.tracking.execution import begin_execution, current_execution, end_execution
from baton.infra.tracking.record import tracked
from baton.infra.tracking.sinks.deliver import Delivery, waiting_for
from baton.infra.tracking.spool import Execution, StageRun, read_execution, write_execution, write_stage
from tests.tracking.conftest import free_port
from tests.tracking.one_execution import write_points
from tests.tracking.trackers import tensorboard, tensorboard_curve, wandb_runs

LOSSES = [(step, 1 / (step + 1)) for step in range(40)]
BOTH = ["wandb", "tensorboard"]
KEY = "0123456789abcdef" * 2 + "01234567"  # in the form of a key of W&B


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.delenv("WANDB_DIR", raising=False)


@pytest.fixture
def folder(home: Path, tmp_path: Path) -> Path:
    """The folder of an execution whose one stage is running."""
    folder = home / "executions" / "20260101-000000-000-abcd"
    write_execution(folder, Execution(folder.name, "one", {"seed": 1}, {}, "command", time.time(), also=BOTH))
    write_stage(folder / "pretrain", StageRun("pretrain", {}, {}, str(tmp_path / "job"), {}, {}, time.time()))
    return folder


def end(folder: Path, status: str = "FINISHED") -> None:
    """End the execution and its stage."""
    run = StageRun(**json.loads((folder / "pretrain" / "run.json").read_text()))
    write_stage(folder / "pretrain", replace(run, status=status, ended=time.time()))
    write_execution(folder, replace(read_execution(folder), status=status, ended=time.time()))


def approximately(curve: list[tuple[int, float]]) -> list[tuple[int, object]]:
    return [(step, pytest.approx(value)) for step, value in curve]


def sync(*options: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "baton", "tracking", "sync", *options]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_trackers_get_the_records_that_mlflow_gets(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("baton.infra.tracking.execution.SINK_WAIT_S", 300.0)  # the machine may be busy
    id = begin_execution("one", {"seed": 1}, also=BOTH)
    spec = {"steps": 40, "optimizer": {"lr": 0.1, "api_key": "hunter2-hunter2"}}
    with tracked("pretrain", tmp_path / "job", spec=spec, inputs={"data": "d" * 64}) as record:
        write_points(tmp_path / "job", range(40))
        record.log_output("checkpoint", "c" * 64, {"parameters": 1000})
    end_execution(metrics={"right": 0.5})
    assert [waiting_for(tracker) for tracker in BOTH] == [[], []]

    runs = wandb_runs(home)
    stage, execution = runs["pretrain"], runs[f"one {id}"]
    assert (stage.group, execution.group) == (id, id)
    assert stage.curve("loss") == LOSSES
    assert stage.config["params"]["steps"] == 40 and stage.config["params"]["optimizer.lr"] == 0.1
    assert stage.config["baton"]["execution"] == id and stage.config["baton"]["stage"] == "pretrain"
    assert (stage.config["baton"]["input.data"], stage.config["baton"]["output"]) == ("d" * 64, "c" * 64)
    assert stage.summary["output/parameters"] == 1000
    assert (execution.config["params"], execution.summary["right"]) == ({"seed": 1}, 0.5)

    events = tensorboard(home / "tensorboard" / id / "pretrain")
    assert tensorboard_curve(home / "tensorboard" / id / "pretrain", "loss") == approximately(LOSSES)
    assert [point.value for point in events.Scalars("output/parameters")] == [1000]
    text = events.Tensors("record/text_summary" if "record/text_summary" in events.Tags()["tensors"] else "record")
    assert "c" * 64 in text[0].tensor_proto.string_val[0].decode()
    assert "_hparams_/session_start_info" in events.summary_metadata

    sent = [path for place in ("wandb", "tensorboard") for path in (home / place).rglob("*") if path.is_file()]
    assert sent and not any(b"hunter2" in path.read_bytes() for path in sent)


@pytest.mark.parametrize("tracker", BOTH)
def test_a_stage_that_is_resumed_doubles_no_point(folder: Path, home: Path, tmp_path: Path, tracker: str) -> None:
    job = tmp_path / "job"
    write_points(job, range(30))
    first = Delivery(tracker, folder)
    first.update()
    lines = (job / "metrics.jsonl").read_text().splitlines(keepends=True)[:10]  # those before the checkpoint
    (job / "new").write_text("".join(lines))
    (job / "new").replace(job / "metrics.jsonl")
    write_points(job, range(10, 35))
    first.update()
    del first  # without its end, as after kill -9
    write_points(job, range(35, 40))
    end(folder)
    Delivery(tracker, folder).finish()
    assert curve_of(tracker, home, folder) == approximately(LOSSES)


@pytest.mark.parametrize("tracker", BOTH)
def test_what_was_sent_before_a_kill_is_sent_again_without_doubles(
    folder: Path, home: Path, tmp_path: Path, tracker: str
) -> None:
    write_points(tmp_path / "job", range(40))
    end(folder)
    for _ in range(2):
        Delivery(tracker, folder).finish()
        for note in folder.rglob("*.*"):
            if note.suffix == f".{tracker}":
                note.unlink()
    assert waiting_for(tracker) == [folder]
    assert curve_of(tracker, home, folder) == approximately(LOSSES)


def curve_of(tracker: str, home: Path, folder: Path) -> list[tuple[int, float]]:
    if tracker == "wandb":
        return wandb_runs(home)["pretrain"].curve("loss")
    return tensorboard_curve(home / "tensorboard" / folder.name / "pretrain", "loss")


def test_a_tensorboard_that_is_open_sees_each_point_once(folder: Path, home: Path, tmp_path: Path) -> None:
    job = tmp_path / "job"
    write_points(job, range(20))
    delivery = Delivery("tensorboard", folder)
    delivery.update()
    events = tensorboard(home / "tensorboard" / folder.name / "pretrain")
    assert len(events.Scalars("loss")) == 20
    write_points(job, range(20, 40))
    delivery.update()
    events.Reload()
    assert len(events.Scalars("loss")) == 40
    end(folder)
    delivery.finish()
    time.sleep(1.1)
    events.Reload()
    assert [point.step for point in events.Scalars("loss")] == list(range(40))


def test_steps_of_a_metric_may_come_in_any_order(folder: Path, home: Path, tmp_path: Path) -> None:
    write_points(tmp_path / "job", range(5))
    with (tmp_path / "job" / "metrics.jsonl").open("a") as stream:
        for step, value in ((0, 1.0), (4, math.nan), (2, math.inf)):
            stream.write(json.dumps({"step": step, "time": time.time(), "validation": value}) + "\n")
    end(folder)
    for tracker in BOTH:
        Delivery(tracker, folder).finish()
    validation = wandb_runs(home)["pretrain"].curve("validation")
    assert [step for step, _ in validation] == [0, 4, 2]
    shown = tensorboard_curve(home / "tensorboard" / folder.name / "pretrain", "validation")
    assert [step for step, _ in shown] == [0, 4, 2]


def test_names_from_a_recipe_are_only_text(folder: Path, home: Path) -> None:
    title = "<script>alert(1)</script> delivered.wandb \x1b[31m../.."
    run = StageRun(
        title, {"</td>": "[" * 5000, "n": "1" * 4000}, {}, None, {}, {}, time.time(), time.time(), "FINISHED"
    )
    write_stage(folder / "odd", run)
    end(folder)
    for tracker in BOTH:
        Delivery(tracker, folder).finish()
    assert wandb_runs(home)[title].config["params"].keys() == {"</td>", "n"}
    assert (home / "tensorboard" / folder.name / "odd").is_dir()


def test_two_processes_deliver_an_execution_once(folder: Path, home: Path, tmp_path: Path) -> None:
    write_points(tmp_path / "job", range(40))
    end(folder)
    command = [sys.executable, "-m", "baton.infra.tracking.sinks", "wandb"]
    both = [subprocess.Popen(command) for _ in range(2)]
    assert [process.wait() for process in both] == [0, 0]
    assert wandb_runs(home)["pretrain"].curve("loss") == LOSSES


@pytest.mark.long
def test_the_records_of_a_killed_process_are_delivered_by_sync(home: Path, tmp_path: Path) -> None:
    program = f"""
import time
from pathlib import Path
from baton.infra.tracking.execution import begin_execution
from baton.infra.tracking.record import tracked
from tests.tracking.one_execution import write_points
begin_execution("doomed", {{}}, also={BOTH})
with tracked("pretrain", Path({str(tmp_path / "job")!r}), spec={{}}, inputs={{}}):
    write_points(Path({str(tmp_path / "job")!r}), range(20))
    print("recorded", flush=True)
    time.sleep(600)
"""
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "recorded\n"
    write_points(tmp_path / "job", range(20, 40))
    process.kill()
    process.wait()
    for tracker in BOTH:
        wait_for_lock(home, tracker)
    done = sync()
    assert done.returncode == 0, done.stderr
    assert "wandb: delivered" in done.stdout  # the process of the other may have ended with everything sent
    run = wandb_runs(home)["pretrain"]
    assert run.curve("loss") == LOSSES and run.exit_code == 1
    assert run.config["baton"]["error"] == "the process was killed, or the machine went down"
    (folder,) = (home / "tensorboard").iterdir()
    assert tensorboard_curve(folder / "pretrain", "loss") == approximately(LOSSES)
    assert [waiting_for(tracker) for tracker in BOTH] == [[], []]


def wait_for_lock(home: Path, tracker: str) -> None:
    """Wait until the process that a killed process had started has ended: it ends when it has sent the rest."""
    (folder,) = (home / "executions").iterdir()
    for _ in range(600):
        with Delivery(tracker, folder).alone() as is_alone:
            if is_alone:
                return
        time.sleep(0.1)
    pytest.fail(f"the process of {tracker} has not ended")


@pytest.mark.long
def test_an_outage_stops_no_run_and_shows_no_key(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    monkeypatch.setattr("baton.infra.tracking.execution.SINK_WAIT_S", 3.0)
    begin_execution("one", {}, also=["wandb"])
    log = current_execution("one") / "wandb.log"
    with tracked("pretrain", tmp_path / "job", spec={}, inputs={}):
        write_points(tmp_path / "job", range(40))
    started = time.monotonic()
    end_execution()
    assert time.monotonic() - started < 60
    error = capfd.readouterr().err
    assert "tracking: wandb lacks some records" in error and "Traceback" not in error and "baton tracking sync" in error
    written = [path for path in home.rglob("*") if path.is_file()]
    assert KEY not in error and not any(KEY.encode() in path.read_bytes() for path in written)
    assert log.exists()

    monkeypatch.setenv("WANDB_MODE", "offline")
    assert sync().returncode == 0
    assert wandb_runs(home)["pretrain"].curve("loss") == LOSSES


def test_sync_all_sends_everything_again(folder: Path, home: Path, tmp_path: Path) -> None:
    write_points(tmp_path / "job", range(40))
    end(folder)
    Delivery("tensorboard", folder).finish()
    for path in (home / "tensorboard").rglob("events*"):
        path.unlink()
    Delivery("tensorboard", folder).finish()
    assert not [*(home / "tensorboard").rglob("events*")]  # it was delivered
    assert sync("--all").returncode == 0
    assert tensorboard_curve(home / "tensorboard" / folder.name / "pretrain", "loss") == approximately(LOSSES)
