"""A tiny workflow that `python -m infra.cluster check` runs in a pod, to check the cluster from inside."""

import os
import platform
import shutil
import sys
from pathlib import Path

from flytekit import FlyteContextManager, task, workflow

from infra.errors import Stopped
from infra.tracking.store import check_reachable, passed_on, shown_uri

CGROUP = Path("/sys/fs/cgroup")


@task(container_image="{{.image.baton-data}}")
def look() -> dict[str, str]:
    """The result of each check by its name: "ok: …" or "failed: …"."""
    return {"storage in a pod": _storage(), "MLflow in a pod": _tracking(), "limits": f"ok: {_limits()}"}


@workflow
def looked() -> dict[str, str]:
    found: dict[str, str] = look()
    return found


def _storage() -> str:
    """Write a file to the pods' artifact storage and read it back."""
    access = FlyteContextManager.current_context().file_access
    there, here = f"{access.raw_output_prefix.rstrip('/')}/probe", Path("probe.txt")
    here.write_text("probe")
    access.put_data(str(here), there)
    access.get_data(there, f"{here}.back")
    if Path(f"{here}.back").read_text() != "probe":
        return f"failed: {there}: the file read differs from the one written"
    return f"ok: {os.environ.get('BATON_STORAGE') or there}"


def _tracking() -> str:
    if not passed_on():
        return (
            "failed: MLFLOW_TRACKING_URI names no server, so pods' records are lost with them; set it for every pod: "
            "plugins.k8s.default-env-vars in Flyte's values"
        )
    try:
        check_reachable()
    except Stopped as error:
        return f"failed: {error}"
    return f"ok: {shown_uri()}"


def _limits() -> str:
    """The resources of a pod that requests none."""
    memory, cpu = _read("memory.max"), _read("cpu.max").split()
    quota = f"{int(cpu[0]) / int(cpu[1]):g}" if len(cpu) == 2 and cpu[0] != "max" else f"all {os.cpu_count()}"
    shared, disk = (shutil.disk_usage(path).total / 2**30 for path in ("/dev/shm", "/"))
    memory = f"{int(memory) / 2**30:.1f} GiB of memory" if memory.isdigit() else "memory without a limit"
    return (
        f"unless a stage requests more, {quota} CPUs, {memory}, {shared:.1f} GiB of shared memory, {disk:.0f} GiB of "
        f"disk; Python {platform.python_version()}, {sys.platform}"
    )


def _read(name: str) -> str:
    path = CGROUP / name
    return path.read_text().strip() if path.exists() else ""
