"""trackio as a tracker beside MLflow, in an environment of its own: it needs an older Pillow than the pinned one."""

import json
import os
import subprocess
import sys
import sysconfig
import time
import venv
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from baton.infra.tracking.sinks import TRACKERS
from baton.infra.tracking.spool import Execution, StageRun, read_execution, read_stage, write_execution, write_stage
from tests.tracking.one_execution import write_points

pytestmark = pytest.mark.long

CURVES = """
import json, sys
from trackio.sqlite_storage import SQLiteStorage
names = SQLiteStorage.get_runs("baton")
print(json.dumps({name: SQLiteStorage.get_logs("baton", name) for name in names}))
print(json.dumps({name: SQLiteStorage.get_run_config("baton", name) for name in names}))
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The Python of an environment with trackio before Baton's packages."""
    folder = tmp_path_factory.mktemp("trackio")
    venv.create(folder, symlinks=True)
    found = folder / "bin" / "python"
    uv = [str(Path(sys.executable).with_name("uv")), "pip", "install", "--quiet", "--python", str(found)]
    tracker = TRACKERS["trackio"]
    subprocess.run([*uv, f"{tracker.package}{tracker.version}"], check=True)
    (place,) = folder.glob("lib/python*/site-packages")
    (place / "baton.pth").write_text(sysconfig.get_path("purelib"))
    return str(found)


def test_trackio_gets_each_point_once(home: Path, tmp_path: Path, python: str) -> None:
    folder, job = home / "executions" / "20260101-000000-000-abcd", tmp_path / "job"
    execution = Execution(folder.name, "one", {"seed": 1}, {}, "command", time.time(), also=["trackio"])
    write_execution(folder, execution)
    write_stage(folder / "pretrain", StageRun("pretrain", {"lr": "0.1"}, {}, str(job), {}, {}, time.time()))
    write_points(job, range(20))
    environment = os.environ | {"TRACKIO_DIR": str(tmp_path / "store"), "BATON_HOME": str(home)}
    command = [python, "-m", "baton.infra.tracking.sinks", "trackio"]
    watched = subprocess.Popen([*command, "--watch", str(folder)], env=environment, stdin=subprocess.PIPE)
    while len(points(python, environment)) < 20:
        assert watched.poll() is None
        time.sleep(1)
    watched.kill()  # before its end
    watched.wait()
    write_points(job, range(20, 40))
    write_stage(folder / "pretrain", replace(read_stage(folder / "pretrain"), status="FINISHED", ended=time.time()))
    write_execution(folder, replace(read_execution(folder), status="FINISHED", ended=time.time()))
    for _ in range(2):
        subprocess.run(command, env=environment, check=True)
        for note in folder.rglob("*.trackio"):
            note.unlink()
    assert points(python, environment) == [(step, 1 / (step + 1)) for step in range(40)]
    config = read(python, environment)[1][f"{folder.name} pretrain"]
    assert config["lr"] == 0.1 and config["baton"]["execution"] == folder.name and config["status"] == "FINISHED"


def points(python: str, environment: dict[str, str]) -> list[tuple[int, float]]:
    logs = read(python, environment)[0]
    stage = [name for name in logs if name.endswith(" pretrain")]
    return [(log["step"], log["loss"]) for name in stage for log in logs[name] if "loss" in log]


def read(python: str, environment: dict[str, str]) -> tuple[dict[str, list[dict[str, Any]]], dict[str, dict[str, Any]]]:
    """The logs and the configuration of each run, as trackio reads them."""
    done = subprocess.run([python, "-c", CURVES], env=environment, check=True, capture_output=True, text=True)
    logs, configs = done.stdout.splitlines()[-2:]
    return json.loads(logs), json.loads(configs)
