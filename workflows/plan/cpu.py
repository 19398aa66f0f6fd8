"""The speed of this machine's CPU, measured once and stored in Baton's home."""

import importlib.util
import json
import os
from contextlib import suppress
from dataclasses import asdict
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from baton.infra.paths import baton_home
from baton.infra.storage.durable import write_json
from baton.infra.tracking.machine import machine
from baton.tasks.hardware.accelerators import Accelerator

# Variables that limit the instructions that torch and oneDNN use
INSTRUCTIONS = ("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA")


@cache
def this_cpu(precision: str, processes: int) -> Accelerator | None:
    """The part of this machine's CPU that each of this many processes has; None if torch is not installed. It is
    measured in a second, whatever else the machine does, and looked up from then on."""
    if importlib.util.find_spec("torch") is None:
        return None
    file = baton_home() / "cpu-speeds.json"
    known = _read(file)
    speed = known.get(key := _key(precision))
    if speed is None:
        speed = asdict(_measured(precision))
        with suppress(OSError):  # it is measured again next time
            write_json(file, known | {key: speed})
    peaks = {name: tflops / processes for name, tflops in speed["tflops"].items()}
    return Accelerator("CPU", "", 0, peaks, speed["bandwidth"] / processes)


def _measured(precision: str) -> Accelerator:
    from baton.tasks.hardware.flops import cpu_peak, measured_bandwidth  # imports torch

    return Accelerator("CPU", "", 0, {precision: cpu_peak(precision) / 1e12}, measured_bandwidth())


def _key(precision: str) -> str:
    """Everything that the speed depends on: a home may be moved, or shared by several machines."""
    facts = machine()
    limits = [f"{name}={os.environ[name]}" for name in INSTRUCTIONS if os.environ.get(name)]
    return ", ".join([facts["processor"], f"{facts['cores']} cores", f"torch {version('torch')}", precision, *limits])


def _read(file: Path) -> dict[str, dict[str, Any]]:
    try:
        speeds = json.loads(file.read_text())
        return {key: asdict(Accelerator(**speed)) for key, speed in speeds.items()}
    except (OSError, ValueError, TypeError, AttributeError):  # none yet, or damaged
        return {}
