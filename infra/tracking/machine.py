"""Which machine made a run, and where its execution can be looked at."""

import os
import platform
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

LINEAGE = "BATON_LINEAGE"
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


def lineage_page(execution: str, environment: Mapping[str, str] = os.environ) -> str:
    """The execution's page, where BATON_LINEAGE says at which address people have Baton's pages; else empty."""
    server = environment.get(LINEAGE, "").rstrip("/")
    return f"{server}/lineage/executions/{execution}" if server else ""


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
