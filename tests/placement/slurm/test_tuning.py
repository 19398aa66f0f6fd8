"""Post-training on two nodes. One loses a process, then all of them, and the model equals that of an undisturbed
run."""

import os
import signal
from pathlib import Path

import pytest

from baton.infra.process.heartbeat import read_beats
from tests.placement.runs import ALPHA, GRPO, Run, done, pids, placement, tune
from tests.placement.slurm.clusters import World

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(1800)]


def rank_pid(run: Run, rank: int) -> int:
    """Return the process of a rank, found by its heartbeat."""
    (job,) = (run.home / "jobs").glob(f"{run.stage}-*")
    return read_beats(job, [rank])[rank].pid


def test_a_process_and_then_a_node_are_killed(slurm: World, tmp_path: Path) -> None:
    """The model equals that of two local processes."""
    here = done(tune(tmp_path / "here", "sft", {"layout": {"processes": 2, "sharding": "fsdp2"}}))
    layout = {"nodes": 2, "processes": 1, "sharding": "fsdp2"}
    run = tune(tmp_path / "placed", "sft", {"layout": layout, "placement": placement(ALPHA, nodes=2)})
    run.reaches(10)  # the first checkpoint begins, and ranks wait for each other at torch's store
    os.kill(rank_pid(run, 1), signal.SIGKILL)  # the stage restarts its engine
    run.reaches(120)
    launchers = {*pids("pyflyte-execute", run)}.intersection(slurm.alpha.processes("a2"))
    os.kill(max(launchers), signal.SIGKILL)  # SkyPilot restarts the stage
    run.reaches(200)
    slurm.cut_power(slurm.alpha, "a2")
    done(run)
    assert run.digest == here.digest
    assert run.losses() == here.losses()
    assert run.record().placed["recoveries"] == 2


def test_grpo_on_two_nodes_loses_a_process(slurm: World, tmp_path: Path) -> None:
    """The model and its rollouts equal those of two local processes."""
    here = done(tune(tmp_path / "here", "grpo", GRPO, {"layout": {"processes": 2, "sharding": "fsdp2"}}))
    layout = {"nodes": 2, "processes": 1, "sharding": "fsdp2"}
    run = tune(tmp_path / "placed", "grpo", GRPO, {"layout": layout, "placement": placement(ALPHA, nodes=2)})
    run.reaches(12)
    os.kill(rank_pid(run, 1), signal.SIGKILL)
    done(run)
    assert run.digest == here.digest
    assert run.losses() == here.losses()
    # the stage restarted its engines, and SkyPilot did not restart the stage
    assert run.record().placed["recoveries"] == 0


def test_rollout_servers_have_a_node_of_their_own(slurm: World, tmp_path: Path) -> None:
    """The model equals that of a local trainer with its server beside it; when the trainer is killed, both restart."""
    here = done(tune(tmp_path / "here", "grpo", GRPO, {"rollout_servers": {}}))
    servers = {"rollout_servers": {"nodes": 1}, "placement": placement(ALPHA, nodes=2)}
    run = tune(tmp_path / "placed", "grpo", GRPO, servers)
    run.reaches(12)
    os.kill(rank_pid(run, 0), signal.SIGKILL)
    done(run)
    assert run.digest == here.digest
    assert run.losses() == here.losses()
    assert run.record().placed["recoveries"] == 0
