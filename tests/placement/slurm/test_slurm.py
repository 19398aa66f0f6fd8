"""Pretraining placed on real Slurm clusters by unmodified SkyPilot; run with `make test-placement`.

Each placed run leaves its machine and returns. It is compared with a local run in the same world.
"""

import os
import re
import signal
from pathlib import Path

import pytest

from tests.placement.runs import ALPHA, BETA, LONG, SHORT, Run, done, pids, placement, start
from tests.placement.slurm.clusters import World, occupied
from tests.placement.world import start_api_server, stop_api_server, until

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(900)]
TOKEN = "hf_" + "Z" * 30


@pytest.fixture(scope="session")
def short(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The short training, run locally."""
    return done(start(tmp_path_factory.mktemp("short"), SHORT))


@pytest.fixture(scope="session")
def long(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The long training, run locally."""
    return done(start(tmp_path_factory.mktemp("long"), LONG))


def nothing_is_left(world: World) -> bool:
    return not world.alpha.jobs() and not world.beta.jobs()


def test_placed_elsewhere_it_is_the_same(slurm: World, short: Run, tmp_path: Path) -> None:
    run = done(start(tmp_path, SHORT, {"placement": placement(ALPHA)}, HF_TOKEN=TOKEN))
    assert run.digest == short.digest
    assert run.losses() == short.losses()
    placed = run.record().placed
    assert (placed["cloud"], placed["region"], placed["zone"]) == ("Slurm", "alpha", "cpu")
    assert placed["job_id"] > 0
    until(lambda: nothing_is_left(slurm), "the clusters are released")
    for path in [*run.home.rglob("*.json"), *run.home.rglob("*.txt"), tmp_path / "terminal.txt"]:
        assert TOKEN not in path.read_text(), path
    again = done(start(tmp_path, SHORT, {"placement": placement(BETA)}))  # the placement is no part of the cache key
    assert "pretrain       cached" in again.output()


def test_a_full_cluster_is_passed_over(slurm: World, short: Run, tmp_path: Path) -> None:
    with occupied(slurm.alpha):
        run = done(start(tmp_path, SHORT, {"placement": placement(ALPHA, BETA)}))
    assert run.record().placed["region"] == "beta"
    assert run.digest == short.digest


def test_a_killed_job_recovers_to_the_same_loss(slurm: World, long: Run, tmp_path: Path) -> None:
    run = start(tmp_path, LONG, {"placement": placement(ALPHA, BETA)})
    run.reaches(150)
    slurm.alpha.slurm("scancel", *slurm.alpha.jobs())
    run.reaches(500)
    os.kill(pids("pyflyte-execute", run)[-1], signal.SIGKILL)
    done(run)
    assert run.losses() == long.losses()
    assert run.digest == long.digest
    assert run.record().placed["recoveries"] == 2


def test_ctrl_c_leaves_nothing_on_the_clusters(slurm: World, tmp_path: Path) -> None:
    run = start(tmp_path, LONG, {"placement": placement(ALPHA)})
    run.reaches(20)
    run.ctrl_c()
    assert run.ends(60) == 1
    assert "cancelling job" in run.output()
    until(lambda: nothing_is_left(slurm), "the job's end", 120)
    until(lambda: not pids("baton.tasks.pretrain", run), "the end of the processes")


def test_a_laptop_that_was_closed_finds_its_job_again(slurm: World, long: Run, tmp_path: Path) -> None:
    first = start(tmp_path, LONG, {"placement": placement(ALPHA)})
    first.reaches(20)
    first.process.kill()
    job = re.findall(r"job \d+ running", first.output())[-1]
    again = done(start(tmp_path, LONG, {"placement": placement(ALPHA)}))
    assert job in again.output()
    assert first.digest == long.digest


def test_what_a_person_must_change_fails_once(slurm: World, tmp_path: Path) -> None:
    # only the job's machine can detect that it has no such device
    wrong = {"layout": {"micro_batch": 4, "device": "H100"}}
    run = start(tmp_path, SHORT, wrong, {"placement": placement(ALPHA)})
    assert run.ends() == 1
    assert "layout.device is H100, but this machine has no GPU" in run.output()
    assert run.record().placed["recoveries"] == 0


def test_two_nodes_train_one_model(slurm: World, short: Run, tmp_path: Path) -> None:
    layout = {"nodes": 2, "processes": 1, "micro_batch": 4}
    run = done(start(tmp_path, SHORT, {"placement": placement(ALPHA, nodes=2), "layout": layout}))
    assert (run.record().output or {})["facts"]["layout"]["data"] == 2
    assert run.losses()[30] == pytest.approx(short.losses()[30], rel=1e-3)


def test_the_api_server_may_be_restarted(slurm: World, long: Run, tmp_path: Path) -> None:
    run = start(tmp_path, LONG, {"placement": placement(ALPHA)})
    run.reaches(50)
    stop_api_server()
    until(lambda: "is unreachable" in run.output(), "the error is reported")
    start_api_server()
    assert done(run).digest == long.digest
