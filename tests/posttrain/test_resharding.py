"""A run continues under another layout. A killed rank ends the run, which continues from its last checkpoint."""

import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from baton.infra.process.heartbeat import read_beats
from baton.infra.process.launch import Engine, EngineFailed, run_engine
from tests.posttrain.ranks import NEVER, engine, run_all
from tests.posttrain.test_parity import SPEC, difference, gradient_difference, inputs, spec_of
from tests.posttrain.tiny import metrics, write_job

__all__ = ["inputs"]  # the fixture is imported for pytest

Job = Path
LEGS: list[dict[str, Any]] = [
    {},
    {"processes": 2, "sharding": "ddp", "micro_batch": 2},
    {"processes": 4, "sharding": "fsdp2", "micro_batch": 1},
    {"processes": 2, "sharding": "fsdp2", "micro_batch": 4, "cpu_offload": True},
]


def relaid(job: Job, layout: dict[str, Any]) -> int | None:
    """Change a job's layout, as another run with the same cache key does, and return the number of processes."""
    request = json.loads((job / "spec.json").read_text())
    request["spec"]["layout"] = layout
    (job / "spec.json").write_text(json.dumps(request))
    return layout.get("processes")


@pytest.mark.long
def test_a_run_continues_from_one_layout_to_the_next(inputs: dict[str, dict[str, Path]], tmp_path: Path) -> None:
    """The layouts are one process, 2 with DDP, 4 with FSDP2, and 2 with FSDP2 and CPU offload. Each takes two steps,
    and the optimizer state is compared too."""
    cases = [("sft", "full"), ("dpo", "lora"), ("grpo", "full")]
    whole, stopped = (
        [
            write_job(
                tmp_path / f"{name}-{stage}",
                stage,
                spec_of(stage, method, tmp_path / "rewards") | {"checkpoint_every": 2},
                **inputs[stage],
            )
            for stage, method in cases
        ]
        for name in ("whole", "stopped")
    )
    run_all(whole, None)
    for number, layout in enumerate(LEGS, 1):
        processes = [relaid(job, layout) for job in stopped]
        run_all(stopped, processes[0], 2 * number if number < len(LEGS) else NEVER)

    for one, other in zip(stopped, whole, strict=True):
        assert max(difference(one, other), gradient_difference(one, other)) < 1


def in_background(job: Job, processes: int, hang_timeout_s: float = 15) -> tuple[threading.Thread, list[str]]:
    """Run an SFT job as its stage does, and append the message of a failure to the list."""
    failures: list[str] = []

    def run() -> None:
        try:
            engine = Engine("sft", "baton.tasks.posttrain.engine", "test")
            request = json.loads((job / "spec.json").read_text())
            run_engine(engine, job, request, title="sft", processes=processes, hang_timeout_s=hang_timeout_s)
        except EngineFailed as error:
            failures.append(str(error))

    thread = threading.Thread(target=run)
    thread.start()
    return thread, failures


@pytest.mark.long
@pytest.mark.parametrize(
    ("sharding", "signum", "found"),
    [
        ("ddp", signal.SIGSTOP, "rank 1 hangs: no heartbeat for"),
        ("fsdp2", signal.SIGKILL, "rank 1 was killed by SIGKILL"),
    ],
)
def test_a_dead_or_hung_rank_ends_the_run_which_then_makes_the_same_model(
    inputs: dict[str, dict[str, Path]], tmp_path: Path, sharding: str, signum: signal.Signals, found: str
) -> None:
    spec = SPEC | {"steps": 40, "checkpoint_every": 3, "layout": {"processes": 2, "sharding": sharding}}
    whole, killed = (write_job(tmp_path / name, "sft", spec, **inputs["sft"]) for name in ("whole", "killed"))
    thread, failures = in_background(killed, 2)
    while not any(line["step"] >= 7 for line in metrics(killed)):
        assert thread.is_alive(), failures
        time.sleep(0.02)
    os.kill(json.loads((killed / "work" / "ranks" / "1.json").read_text())["pid"], signum)
    began = time.monotonic()
    thread.join()
    assert time.monotonic() - began < 60
    assert found in failures[0]

    thread, failures = in_background(killed, 2)
    thread.join()
    assert not failures
    engine(whole).succeed()

    assert "continuing from" in (killed / "log.txt").read_text()
    results = [json.loads((job / "result.json").read_text()) for job in (killed, whole)]
    assert results[0] == results[1]


@pytest.mark.long
def test_an_error_of_a_rank_is_the_stage_s_message(inputs: dict[str, dict[str, Path]], tmp_path: Path) -> None:
    layout = {"processes": 2, "sharding": "ddp"}
    spec = SPEC | {"max_prompt_tokens": 8, "max_new_tokens": 4, "layout": layout}
    thread, failures = in_background(write_job(tmp_path / "job", "sft", spec, **inputs["sft"]), 2)
    thread.join()
    assert failures[0].startswith("sft: none of the 30 training rows is within max_prompt_tokens 8")


@pytest.mark.long
def test_all_ranks_stay_until_the_output_is_written(inputs: dict[str, dict[str, Path]], tmp_path: Path) -> None:
    """Otherwise torchrun on another machine would wait only 5 minutes for the output, and its launcher would restart
    without it."""
    spec = SPEC | {"layout": {"processes": 2, "sharding": "ddp"}}
    job = write_job(tmp_path / "job", "sft", spec, **inputs["sft"])
    run = engine(job)
    while (beat := read_beats(job, [0]).get(0)) is None or beat.phase != "hand-over":
        assert run.alive(), run.log()
        time.sleep(0.001)
    os.kill(beat.pid, signal.SIGSTOP)
    run.processes[1].join(3)
    waits, result = run.processes[1].is_alive(), (job / "result.json").exists()
    os.kill(beat.pid, signal.SIGCONT)
    run.succeed()
    assert waits and not result
