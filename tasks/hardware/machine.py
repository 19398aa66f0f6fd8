"""Detect this machine's GPUs and memory without importing torch."""

import os
from dataclasses import dataclass
from pathlib import Path

from baton.infra.process.limits import memory

DRIVER = Path("/proc/driver/nvidia/gpus")  # has a folder for each GPU


@dataclass(frozen=True)
class Machine:
    gpus: tuple[str, ...]  # names as in torch.cuda.get_device_name(); AMD GPUs are not detected
    memory_bytes: int  # memory of the host or the container


def this_machine() -> Machine:
    return Machine(_gpus(DRIVER, os.environ.get("CUDA_VISIBLE_DEVICES")), memory())


def _gpus(driver: Path, visible: str | None) -> tuple[str, ...]:
    """Return the GPUs that the driver lists, limited to the number in CUDA_VISIBLE_DEVICES (`visible`)."""
    names = [
        line.split(":", 1)[1].strip()
        for file in sorted(driver.glob("*/information"))
        for line in file.read_text().splitlines()
        if line.startswith("Model:")
    ]
    if visible is not None:
        names = names[: len([word for word in visible.split(",") if word.strip() not in ("", "-1")])]
    return tuple(names)
