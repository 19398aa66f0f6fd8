"""Which machine made a run, and where its execution can be looked at."""

import os
import platform
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from infra.pod import this_pod

CONSOLE = "FLYTE_PLATFORM_CONSOLE_ENDPOINT"  # flytekit's own name for it
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
    """{"Flyte": address}, in a pod that knows where Flyte's console is."""
    pod = this_pod()
    address = pod and flyte_page("/".join((pod.project, pod.domain, pod.execution)))
    return {"Flyte": address} if address else {}


def flyte_page(execution: str) -> str:
    """Flyte's page of an execution, project/domain/id, where FLYTE_PLATFORM_CONSOLE_ENDPOINT says at which address
    people have its console; else empty."""
    console = os.environ.get(CONSOLE, "").rstrip("/")
    if not console or execution.count("/") != 2:
        return ""
    project, domain, id = execution.split("/")
    return f"{console}/console/projects/{project}/domains/{domain}/executions/{id}"


def _field(path: Path, name: str) -> str | None:
    """The first `name: value` of a file of the kernel's."""
    try:
        found = re.search(rf"^{name}\s*:\s*(.+)$", path.read_text(), re.MULTILINE)
    except OSError:
        return None
    return found.group(1).strip() if found else None
