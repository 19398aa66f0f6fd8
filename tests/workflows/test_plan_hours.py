"""The hours on a CPU in the plan: by the measured speed of this machine, and by earlier runs."""

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from baton.infra.tracking.machine import machine
from baton.infra.tracking.spool import FINISHED, Execution, StageRun, write_execution, write_stage
from baton.tasks.hardware.machine import Machine
from baton.workflows.checks.run_context import RunContext
from baton.workflows.plan import cpu
from baton.workflows.plan.planned import Planned, plan
from baton.workflows.plan.text import text
from baton.workflows.recipe import Recipe, context_of
from tests.source import ROOT

TINY: dict[str, Any] = {"corpus": {}, "tokenizer": {"vocab_size": 300}, "shards": {}, "pretrain": {"steps": 40}}
STARTED = time.mktime((2026, 11, 30, 12, 0, 0, 0, 0, -1))


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BATON_HOME", str(tmp_path))
    cpu.this_cpu.cache_clear()
    key = cpu._key("bf16")
    speed = {"name": "CPU", "reported": "", "memory_gb": 0, "tflops": {"bf16": 0.2}, "bandwidth": 0.03}
    (tmp_path / "cpu-speeds.json").write_text(json.dumps({key: speed}))
    return tmp_path


def ran(home: Path, name: str, seconds: float, steps: int = 40, **changes: Any) -> None:
    """Record that the recipe's pretraining took so long."""
    recipe = TINY | {"pretrain": {"steps": steps}}
    execution = Execution(name, "tiny", Recipe.model_validate(recipe).model_dump(mode="json"), {}, "", STARTED)
    write_execution(home / "executions" / name, execution)
    run = StageRun("pretrain", {}, {}, None, {}, {}, STARTED, STARTED + seconds, FINISHED, machine=machine())
    write_stage(home / "executions" / name / "pretrain", replace(run, **changes))


def pretrain(mfu: float | None = None, steps: int = 40) -> Planned:
    recipe = Recipe.model_validate(TINY | {"pretrain": {"steps": steps}})
    context = RunContext(context_of(recipe).specs, Machine((), 2**34))
    return next(step for step in plan(recipe, context, mfu) if step.stage == "pretrain")


def seconds(steps: int = 40) -> float:
    return 3600 * (pretrain(steps=steps).hours or 0)


def test_a_stage_takes_as_long_as_it_took(home: Path) -> None:
    ran(home, "1", 77)
    assert seconds() == pytest.approx(77)
    assert "  time        about 77 s on this machine's CPU, as fast as on 2026-11-30" in text("tiny", [pretrain()])


def test_of_several_runs_the_fastest_counts_since_others_had_less_of_the_machine(home: Path) -> None:
    for name, taken in {"1": 300, "2": 77, "3": 200}.items():
        ran(home, name, taken)
    assert seconds() == pytest.approx(77)


def test_another_number_of_steps_takes_its_share(home: Path) -> None:
    before = seconds(400), seconds(800)
    ran(home, "1", 2 * before[0], steps=400)
    assert seconds(800) == pytest.approx(2 * before[1])


def test_a_much_shorter_run_says_nothing_about_a_long_one(home: Path) -> None:
    before = seconds(100_000)
    ran(home, "1", 1000, steps=1)
    assert seconds(100_000) == before


@pytest.mark.parametrize(
    "changes",
    [
        {"status": "KILLED"},
        {"cached": True},
        {"placed": {"provider": "aws"}},
        {"pod": "a-pod"},
        {"machine": {"processor": "another", "cores": "2"}},
    ],
)
def test_a_run_elsewhere_or_without_an_end_does_not_count(home: Path, changes: dict[str, Any]) -> None:
    before = seconds()
    ran(home, "1", 10 * before, **changes)
    assert seconds() == before


def test_nor_does_one_that_continued_an_earlier_one(home: Path) -> None:
    before = seconds()
    (home / "jobs/pretrain-1").mkdir(parents=True)
    (home / "jobs/pretrain-1/metrics.jsonl").write_text(json.dumps({"step": 1, "time": STARTED - 60}) + "\n")
    ran(home, "1", 5, job_dir=str(home / "jobs/pretrain-1"))
    assert seconds() == before


def test_a_damaged_record_is_skipped(home: Path) -> None:
    before = seconds()
    ran(home, "1", 77)
    (home / "executions/1/pretrain/run.json").write_text("{")
    assert seconds() == before


def test_a_share_of_the_peak_that_is_given_counts_alone(home: Path) -> None:
    before = pretrain(0.3).hours
    ran(home, "1", 77)
    assert pretrain(0.3).hours == before


def test_a_damaged_file_of_speeds_is_measured_again(home: Path) -> None:
    (home / "cpu-speeds.json").write_text('{"x": 1}')
    assert seconds() > 0
    assert list(json.loads((home / "cpu-speeds.json").read_text())) == [cpu._key("bf16")]


@pytest.mark.long
def test_other_work_on_the_machine_does_not_slow_the_measured_speed(tmp_path: Path) -> None:
    """Twice as many busy processes as cores leave a third of the machine."""
    program = "from baton.tasks.hardware.flops import cpu_peak; print(cpu_peak('fp32'))"

    def peak() -> float:
        return float(subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, capture_output=True).stdout)

    alone = peak()
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2 * (os.cpu_count() or 1))]
    try:
        assert peak() > 0.6 * alone
    finally:
        for process in busy:
            process.kill()
            process.wait()


def test_a_plan_imports_no_torch_once_the_speed_is_known(home: Path) -> None:
    program = (
        "import atexit, sys, baton.workflows.plan.command as p;"
        "atexit.register(lambda: print({'torch', 'transformers'} & sys.modules.keys()));"
        "p.main(sys.argv[1:], standalone_mode=False)"
    )
    words = [sys.executable, "-c", program, "workflows/recipes/laptop.yaml"]
    ended = subprocess.run(words, cwd=ROOT, check=True, capture_output=True, text=True)
    assert ended.stdout.splitlines()[-1] == "set()"
