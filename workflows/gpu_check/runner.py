"""Run the check's steps one after another, each in its own process with a time limit, and save the results: a CUDA
fault ends a step and not the check, and an interrupted check continues where it stopped.

    FOLDER/check.json             size and machine; the folder is named by their digest
    FOLDER/results/<step>.json    written when the step has ended, before the next one starts
    FOLDER/steps/<step>/          the step's output and its log.txt
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from importlib.metadata import distributions
from importlib.util import find_spec
from pathlib import Path
from typing import IO

from blake3 import blake3
from pydantic import TypeAdapter

from baton.infra.paths import baton_home
from baton.infra.process.file_lock import lock
from baton.infra.process.launch import sigterm_as_exit
from baton.infra.process.logs import end_of
from baton.infra.process.process_group import start_group, stop_group
from baton.infra.storage.durable import make_folder, write_json
from baton.workflows.gpu_check.machine import Machine
from baton.workflows.gpu_check.run_step import OUTCOME, STOP_S
from baton.workflows.gpu_check.sizes import Size
from baton.workflows.gpu_check.step import Result, Step, step_folder

LAST_LINES = 12  # of the log, shown for a failure
LEAST_S = 10.0  # remaining time that a step needs to start


def check_folder(size: Size, machine: Machine) -> Path:
    """The folder of the check for this machine and these library versions."""
    identity = {"size": size.name, "machine": asdict(machine)}
    name = blake3(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:12]
    folder = baton_home() / "gpu-check" / f"{size.name}-{name}"
    make_folder(folder / "results")
    write_json(folder / "check.json", identity)
    return folder


@contextmanager
def locked(folder: Path) -> Iterator[IO[bytes]]:
    """One check at a time. A step's process holds the lock too, so a restarted check waits for it to end."""
    with (folder / "lock").open("ab") as file:
        lock(file, f"another check is running in {folder}; waiting for it to end")
        yield file


def results(folder: Path, steps: tuple[Step, ...]) -> dict[str, Result]:
    """The saved results of the steps."""
    paths = {step.name: folder / "results" / f"{step.name}.json" for step in steps}
    return {name: TypeAdapter(Result).validate_json(path.read_text()) for name, path in paths.items() if path.exists()}


def forget(folder: Path, step: str) -> None:
    (folder / "results" / f"{step}.json").unlink(missing_ok=True)


def result_of(
    folder: Path, step: Step, lock: IO[bytes], known: Mapping[str, Result], tiny: bool, left_s: float
) -> Result:
    """Run a step within the remaining time, and save its result."""
    machine = TypeAdapter(Machine).validate_python(json.loads((folder / "check.json").read_text())["machine"])
    obstacle = _obstacle(step, machine, known, tiny)
    if obstacle is None and left_s < LEAST_S:
        obstacle = "the check's time is up; run it again to continue here"
    result = Result("cannot be tried", obstacle) if obstacle else _attempt(folder, step, lock, tiny, left_s)
    write_json(folder / "results" / f"{step.name}.json", asdict(result))
    return result


def _obstacle(step: Step, machine: Machine, known: Mapping[str, Result], tiny: bool) -> str | None:
    """Return what the step lacks on this machine."""
    if tiny and not step.on_cpu:
        return "it has no tiny variant for a CPU"
    if not tiny and not machine.gpus:
        return machine.trouble
    if not tiny and len(machine.gpus) < step.gpus:
        return f"it needs {step.gpus} GPUs, and this machine has {len(machine.gpus)}"
    least = min((gpu.memory_gb for gpu in machine.gpus), default=0.0)
    if not tiny and least < step.memory_gb:
        return f"it needs {step.memory_gb:.0f} GB of GPU memory, and {machine.gpus[0].name} has {least:.0f} GB"
    missing = [name for name in step.modules if find_spec(name) is None]
    missing += [name for name in step.on_cpu_with if tiny and not any(distributions(name=name))]
    if missing:
        return f"{', '.join(missing)} is not installed"
    lost = [name for name in step.after if name not in known or known[name].status != "pass"]
    return f"it uses the output of {', '.join(lost)}, which has not passed" if lost else None


def _attempt(folder: Path, step: Step, lock: IO[bytes], tiny: bool, left_s: float) -> Result:
    work = step_folder(folder, step.name)
    shutil.rmtree(work, ignore_errors=True)
    make_folder(work)
    began = time.monotonic()
    limit_s = left_s if tiny else min(step.limit_s, left_s)  # CPUs vary too much for the step's own limit
    with (work / "log.txt").open("wb") as log:
        command = [sys.executable, "-m", f"{__package__}.run_step", str(folder), step.name]
        process = start_group(
            command, log, os.environ | ({"CUDA_VISIBLE_DEVICES": ""} if tiny else {}), pass_fds=[lock.fileno()]
        )
        in_time = _wait(process, limit_s)
    seconds = time.monotonic() - began
    if (work / OUTCOME).exists():
        return replace(TypeAdapter(Result).validate_json((work / OUTCOME).read_text()), seconds=seconds)
    if not in_time and limit_s < step.limit_s:
        reason = f"the check's time was up {limit_s:.0f} s into this step; run it again to continue here"
        return Result("cannot be tried", reason, seconds=seconds)
    how = _exit(process.returncode) if in_time else f"it exceeded its time limit of {limit_s:.0f} s"
    return Result("fail", f"{how}. Its last lines:\n{_last_lines(work / 'log.txt')}", seconds=seconds)


def _wait(process: subprocess.Popen[bytes], limit_s: float) -> bool:
    """Wait until the step has ended, and terminate it after `limit_s`; returns whether it ended in time."""
    try:
        with sigterm_as_exit():
            process.wait(limit_s)
        return True
    except subprocess.TimeoutExpired:
        return False
    finally:
        if process.poll() is None:
            process.terminate()  # it stops its engine
            try:
                process.wait(2 * STOP_S)
            except subprocess.TimeoutExpired:
                pass  # killed below
        stop_group(process)


def _exit(returncode: int) -> str:
    return f"killed by {signal.Signals(-returncode).name}" if returncode < 0 else f"exit code {returncode}"


def _last_lines(log: Path) -> str:
    return "\n".join(end_of(log).decode(errors="replace").splitlines()[-LAST_LINES:])
