"""Check every stage on a machine with an NVIDIA GPU in 20 minutes: whether it works, and how fast it is.

    baton gpu-check                            every step; those that have passed are not repeated
    baton gpu-check --only export --only vllm  these steps, and those that they depend on
    baton gpu-check --tiny                     the same code with toy sizes, on a CPU

Each step passes, fails (with its last lines), or cannot be tried (with the reason), and the check continues. It ends
with a table and a JSON file. Exit code 0: all steps that could be tried passed; 1: a step failed; 3: none could be
tried.
"""

import sys
import textwrap
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import click

from baton.infra.options import NewFile, Number
from baton.infra.progress import say
from baton.infra.storage.durable import write_json
from baton.workflows.gpu_check.machine import Machine, look
from baton.workflows.gpu_check.runner import check_folder, forget, locked, result_of, results
from baton.workflows.gpu_check.sizes import FULL, TINY
from baton.workflows.gpu_check.step import Result, Step
from baton.workflows.gpu_check.steps import NAMES, STEPS

WIDTH = 118
FAILED, NONE_TRIED = 1, 3  # exit codes


@click.command()
@click.option("--tiny", is_flag=True, help="Toy sizes on a CPU, to test the check itself.")
@click.option(
    "--only", multiple=True, type=click.Choice(NAMES), help="This step and those it depends on; may be repeated."
)
@click.option("--again", is_flag=True, help="Repeat steps that have passed: all, or with --only these.")
@click.option("--minutes", default=20.0, show_default=True, type=Number(0.1, 1e4), help="Time limit in total.")
@click.option("--json", "to", type=NewFile(), help="Write the figures to this file too.")
def main(tiny: bool, only: tuple[str, ...], again: bool, minutes: float, to: Path | None) -> None:
    """Run and measure every stage on this machine's GPU."""
    deadline = time.monotonic() + 60 * minutes
    machine = look()
    folder = check_folder(TINY if tiny else FULL, machine)
    say(str(machine))
    with locked(folder) as lock:
        steps = _chosen(only)
        for name in (only or NAMES) if again else ():
            forget(folder, name)
        for step in steps:
            known = results(folder, STEPS)
            if step.name in known and known[step.name].status == "pass":
                say(f"{step.name}: already passed")
                continue
            result = result_of(folder, step, lock, known, tiny, deadline - time.monotonic())
            if result.seconds:
                say(f"{step.name}: {result.status}, {result.seconds:.1f} s")
        found = results(folder, steps)
    print(_table(found))
    for path in {folder / "gpu-check.json", to or folder / "gpu-check.json"}:
        _write(path, machine, found)
    print(f"\nfigures: {to or folder / 'gpu-check.json'}; logs: {folder / 'steps'}")
    sys.exit(_exit_code(found))


def _chosen(only: tuple[str, ...]) -> tuple[Step, ...]:
    """These steps and those they depend on, in order; all if none is named."""
    chosen = set(only or NAMES)
    for step in reversed(STEPS):  # a step comes after those it depends on
        if step.name in chosen:
            chosen |= set(step.after)
    return tuple(step for step in STEPS if step.name in chosen)


def _table(found: Mapping[str, Result]) -> str:
    """A line for each step, with its figures wrapped."""
    lines = []
    for name, result in found.items():
        figures = "; ".join(f"{what}: {figure}" for what, figure in result.figures.items())
        head = f"{name:<14} {result.status:<16} {result.seconds:>6.1f} s  "
        cell = [*textwrap.wrap(figures, WIDTH - len(head)), *_reason(result.reason, WIDTH - len(head))] or [""]
        lines += [head + cell[0], *(" " * len(head) + line for line in cell[1:])]
    return "\n".join(line.rstrip() for line in lines)


def _reason(reason: str, width: int) -> list[str]:
    return [part for line in reason.splitlines() for part in textwrap.wrap(line, width)]


def _write(path: Path, machine: Machine, found: Mapping[str, Result]) -> None:
    write_json(path, {"machine": asdict(machine), "steps": {name: asdict(result) for name, result in found.items()}})


def _exit_code(found: Mapping[str, Result]) -> int:
    statuses = {result.status for result in found.values()}
    return FAILED if "fail" in statuses else 0 if "pass" in statuses else NONE_TRIED
