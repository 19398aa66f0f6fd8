"""`make survive`: kill -9 a rank at random moments of each post-training stage, and print the phases that were hit."""

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from baton.infra.process.heartbeat import Beat, rank_file, read_beats
from tests.posttrain.ranks import engine
from tests.posttrain.test_parity import inputs, spec_of
from tests.posttrain.tiny import without_times, write_job
from tests.pretrain.ranks import Ranks, load_libraries

__all__ = ["inputs"]  # the fixture is imported for pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

KILLS = int(os.environ.get("KILLS", "10"))  # kills of each stage with each sharding, 60 in total
PROCESSES, STEPS = 2, 16
NOT_YET = Beat(0, None, 0, None, 0.0)


@pytest.mark.parametrize("sharding", ["ddp", "fsdp2"])
@pytest.mark.parametrize("stage", ["sft", "dpo", "grpo"])
def test_killed_at_random_moments_it_makes_the_same_model(
    inputs: dict[str, dict[str, Path]], stage: str, sharding: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    load_libraries(tmp_path)
    method = "full" if sharding == "ddp" else "lora"
    layout = {"processes": PROCESSES, "sharding": sharding}
    spec = spec_of(stage, method, tmp_path / "rewards") | {"steps": STEPS, "checkpoint_every": 2, "layout": layout}
    whole = write_job(tmp_path / "whole", stage, spec, **inputs[stage])
    run = engine(whole)
    wait_for_training(run, whole)
    began = time.monotonic()
    run.succeed()
    seconds = time.monotonic() - began

    chance, hit, runs = random.Random(f"{stage} {sharding}"), Counter[str](), 0
    while hit.total() < KILLS:
        job = write_job(tmp_path / f"killed-{runs}", stage, spec, **inputs[stage])
        runs += 1
        while hit.total() < KILLS and (found := killed(job, chance, seconds)):
            hit[found] += 1
        if not ended(job):
            engine(job).succeed()
        assert outcome(job) == outcome(whole)
    with capsys.disabled():
        places = ", ".join(f"{count} in {place}" for place, count in hit.most_common())
        print(f"\n{stage} {method} {sharding}: {hit.total()} kills in {runs} runs, all bit-identical; {places}")


@pytest.mark.usefixtures("vllm")
def test_a_rank_that_dies_on_another_machine_is_replaced(inputs: dict[str, dict[str, Path]], tmp_path: Path) -> None:
    """GRPO with vLLM on two machines, whose launchers meet at the address of the placement."""
    layout = {"nodes": 2, "sharding": "fsdp2"}
    spec = spec_of("grpo", "full", tmp_path / "rewards") | {"steps": 12, "checkpoint_every": 2, "layout": layout}
    whole, broken = (write_job(tmp_path / name, "grpo", spec, **inputs["grpo"]) for name in ("whole", "broken"))
    for job in (whole, broken):
        with socket.create_server(("127.0.0.1", 0)) as server:
            meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(server.getsockname()[1])}
        launchers = [
            subprocess.Popen(
                [sys.executable, "-m", "tests.posttrain.launcher", str(job), "2"],
                env=os.environ | meeting | {"NODE_RANK": str(node), "HF_HUB_OFFLINE": "1"},
                stderr=subprocess.PIPE,
                text=True,
            )
            for node in (0, 1)
        ]
        while job is broken and read_beats(job, [1]).get(1, NOT_YET).step < 5:
            assert all(launcher.poll() is None for launcher in launchers)
            time.sleep(0.02)
        if job is broken:
            os.kill(read_beats(job, [1])[1].pid, signal.SIGKILL)
        output = [launcher.communicate()[1] for launcher in launchers]
        assert [launcher.returncode for launcher in launchers] == [0, 0], output

    assert "rank 1 was killed by SIGKILL" in output[1] and "restart 1 of 1" in output[1]
    assert outcome(broken) == outcome(whole)


def killed(job: Path, chance: random.Random, seconds: float) -> str | None:
    """Start an engine, kill one of its ranks at a random moment of its training, and at most a second later the
    others. Return the rank's phase, or None if the engine ended earlier."""
    for rank in range(PROCESSES):
        rank_file(job, rank, "json").unlink(missing_ok=True)  # a file of the previous run
    run, rank = engine(job), chance.randrange(PROCESSES)
    wait_for_training(run, job)
    deadline = time.monotonic() + chance.uniform(0, seconds)
    try:
        while run.alive() and time.monotonic() < deadline:
            time.sleep(0.002)
        if not run.alive():
            run.succeed()
            return None
        run.processes[rank].kill()
        time.sleep(chance.random())
    finally:
        run.kill()
    beat = read_beats(job, [rank]).get(rank)
    return (beat and beat.phase) or "start"


def wait_for_training(run: Ranks, job: Path) -> None:
    while run.alive() and read_beats(job, [0]).get(0, NOT_YET).phase is None:
        time.sleep(0.002)


def ended(job: Path) -> bool:
    """Return whether the job has ended, so that baton.infra.process.launch would not restart it."""
    result = job / "result.json"
    return result.exists() and "digest" in json.loads(result.read_text())


def outcome(job: Path) -> tuple[dict[str, Any], list[dict[str, float]]]:
    return json.loads((job / "result.json").read_text()), without_times(job)
