"""`make survive`: kill -9 of a rank at random moments in each stage of post-training; prints the phases they hit."""

import json
import os
import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from infra.heartbeat import read_beats
from tests.posttrain.ranks import engine
from tests.posttrain.test_parity import inputs, spec_of
from tests.posttrain.tiny import without_times, write_job
from tests.pretrain.ranks import load_libraries

__all__ = ["inputs"]  # a fixture

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

KILLS = int(os.environ.get("KILLS", "10"))  # of each stage and sharding: 60 in all
PROCESSES, STEPS = 2, 16


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
    began = time.monotonic()
    engine(whole).succeed()
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


def killed(job: Path, chance: random.Random, seconds: float) -> str | None:
    """Start an engine and kill one of its ranks at a random moment, and at the latest a second later all. Returns the
    rank's phase; None if the engine ended before."""
    run = engine(job)
    deadline, rank = time.monotonic() + chance.uniform(0, seconds), chance.randrange(PROCESSES)
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


def ended(job: Path) -> bool:
    """infra.launch would not start it again."""
    result = job / "result.json"
    return result.exists() and "digest" in json.loads(result.read_text())


def outcome(job: Path) -> tuple[dict[str, Any], list[dict[str, float]]]:
    return json.loads((job / "result.json").read_text()), without_times(job)
