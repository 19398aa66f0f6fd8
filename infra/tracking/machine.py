"""The machine of a run, and links to its execution's pages."""

import os
import platform
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from baton.infra.pod import this_pod
from baton.infra.process import limits

CONSOLE = "FLYTE_PLATFORM_CONSOLE_ENDPOINT"  # the variable's name in flytekit
LINEAGE = "BATON_LINEAGE"
_NVIDIA = Path("/proc/driver/nvidia/gpus")


@cache
def machine() -> dict[str, str]:
    """{"host", "processor", "cores", "memory_gb"} and, if there are any, {"gpus"}: "2 × NVIDIA H100"."""
    facts = {
        "host": platform.node(),
        "processor": _field(Path("/proc/cpuinfo"), "model name") or platform.machine(),
        "cores": str(limits.cores()),
        "memory_gb": f"{limits.memory() / 1e9:.1f}",
    }
    gpus = [_field(gpu / "information", "Model") or "GPU" for gpu in sorted(_NVIDIA.glob("*"))]
    if gpus:
        facts["gpus"] = ", ".join(f"{gpus.count(name)} × {name}" for name in sorted(set(gpus)))
    return facts


def lineage_page(execution: str, environment: Mapping[str, str] = os.environ) -> str:
    """The URL of the execution's page, if BATON_LINEAGE is set to the address of Baton's pages; else empty."""
    server = environment.get(LINEAGE, "").rstrip("/")
    return f"{server}/lineage/executions/{execution}" if server else ""


def links() -> dict[str, str]:
    """{"Flyte": URL} in a pod, if the address of Flyte's console is set."""
    pod = this_pod()
    address = pod and flyte_page("/".join((pod.project, pod.domain, pod.execution)))
    return {"Flyte": address} if address else {}


def flyte_page(execution: str) -> str:
    """The URL of an execution (project/domain/id) in Flyte's console, if FLYTE_PLATFORM_CONSOLE_ENDPOINT is set; else
    empty."""
    console = os.environ.get(CONSOLE, "").rstrip("/")
    if not console or execution.count("/") != 2:
        return ""
    project, domain, id = execution.split("/")
    return f"{console}/console/projects/{project}/domains/{domain}/executions/{id}"


def _field(path: Path, name: str) -> str | None:
    """The first `name: value` in a file of /proc."""
    try:
        match = re.search(rf"^{name}\s*:\s*(.+)$", path.read_text(), re.MULTILINE)
    except OSError:
        return None
    return match.group(1).strip() if match else None
