"""Which machine made a run, and where it was placed: hardware, and what SkyPilot says of its cluster."""

import json
import os
import platform
import re
from functools import cache
from pathlib import Path

_NVIDIA = Path("/proc/driver/nvidia/gpus")


@cache
def machine() -> dict[str, str]:
    """{"host", "processor", "cores", "memory_gb"} and, where there are any, {"gpus"}: "2 × NVIDIA H100"."""
    found = {
        "host": platform.node(),
        "processor": _field(Path("/proc/cpuinfo"), "model name") or platform.machine(),
        "cores": str(len(os.sched_getaffinity(0))),
        "memory_gb": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 1e9:.1f}",
    }
    gpus = [_field(each / "information", "Model") or "GPU" for each in sorted(_NVIDIA.glob("*"))]
    if gpus:
        found["gpus"] = ", ".join(f"{gpus.count(name)} × {name}" for name in sorted(set(gpus)))
    return found


def placement() -> dict[str, str]:
    """{"cluster", "cloud", "region", "zone"} on a machine that SkyPilot rented, as far as it says; else {}."""
    try:
        told = dict(json.loads(os.environ.get("SKYPILOT_CLUSTER_INFO", "{}")))
    except (ValueError, TypeError):
        return {}  # a record that lacks a line stops no training
    named = {name.removesuffix("_name"): value for name, value in told.items()}
    return {name: str(named[name]) for name in ("cluster", "cloud", "region", "zone") if named.get(name)}


def links() -> dict[str, str]:
    """{"Flyte": address} on a Flyte cluster that says where its console is (FLYTE_PLATFORM_CONSOLE_ENDPOINT)."""
    words = ("PLATFORM_CONSOLE_ENDPOINT", *(f"INTERNAL_EXECUTION_{part}" for part in ("PROJECT", "DOMAIN", "ID")))
    console, project, domain, id = (os.environ.get(f"FLYTE_{word}", "") for word in words)
    if not (console and id):
        return {}
    return {"Flyte": f"{console.rstrip('/')}/console/projects/{project}/domains/{domain}/executions/{id}"}


def _field(path: Path, name: str) -> str | None:
    """The first `name: value` of a file of the kernel's."""
    try:
        found = re.search(rf"^{name}\s*:\s*(.+)$", path.read_text(), re.MULTILINE)
    except OSError:
        return None
    return found.group(1).strip() if found else None
