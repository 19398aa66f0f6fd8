"""A tiny workflow that `baton cluster check` runs in a pod, to check the cluster from inside."""

import os
import platform
import shutil
import sys
from pathlib import Path

from flytekit import FlyteContextManager, Workflow, task

from baton.infra.errors import UserError
from baton.infra.pod_spec import PodSpec, Resources, short_of
from baton.infra.process import limits
from baton.infra.tracking.store import check_reachable, passed_on, shown_uri

NAME = "baton.workflows.cluster.probe.looked"
TOKEN = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")
STATUS = Path("/proc/self/status")
PLACES = {"shared memory": "/dev/shm", "disk": "/"}


@task(container_image="{{.image.baton-data}}")
def look(title: str, asked: str) -> dict[str, str]:
    """The result of each check by name: "ok: …" or "failed: …". `asked`: Resources of the stage `title`, as JSON."""
    return {
        "storage in a pod": _storage(),
        "MLflow in a pod": _tracking(),
        "limits": _limits(title, Resources.model_validate_json(asked)),
        "pod security": _security(),
    }


def looked(pod: PodSpec) -> Workflow:
    """The workflow, whose pod asks for what another does."""
    workflow = Workflow(name=NAME)
    inputs = {name: workflow.add_workflow_input(name, str) for name in ("title", "asked")}
    node = workflow.add_entity(look, **inputs)
    node.with_overrides(**pod.overrides())
    workflow.add_workflow_output("found", node.outputs["o0"])
    return workflow


def _storage() -> str:
    """Write a file to the pods' artifact storage and read it back."""
    access = FlyteContextManager.current_context().file_access
    address, path = f"{access.raw_output_prefix.rstrip('/')}/probe", Path("probe.txt")
    path.write_text("probe")
    access.put_data(str(path), address)
    access.get_data(address, f"{path}.back")
    if Path(f"{path}.back").read_text() != "probe":
        return f"failed: {address}: the file read differs from the one written"
    return f"ok: {os.environ.get('BATON_STORAGE') or address}"


def _tracking() -> str:
    if not passed_on():
        return (
            "failed: MLFLOW_TRACKING_URI names no server, so pods' records are lost with them; set it here, where you "
            "start runs (they pass it on, unless it holds a password), or for every pod: plugins.k8s.default-env-vars "
            "in Flyte's values"
        )
    try:
        check_reachable()
    except UserError as error:
        return f"failed: {error}"
    return f"ok: {shown_uri()}"


def _limits(title: str, asked: Resources) -> str:
    """Return what this pod has of the resources that it asked for."""
    memory, cpu = limits.memory_limit(), limits.cpu_limit()
    parts = [
        f"{cpu:g} CPUs" if cpu else f"all {limits.cores()} CPUs",
        f"{memory / 2**30:.1f} GiB of memory" if memory else "memory without a limit",
        *(f"{shutil.disk_usage(path).total / 2**30:.2g} GiB of {name}" for name, path in PLACES.items()),
        f"Python {platform.python_version()}, {sys.platform}",
    ]
    has = f"a pod that asks for as much as {title} has {', '.join(parts)}"
    if missing := short_of(asked):
        return f"failed: {has}: {', '.join(missing)}. Raise task_resources.limits in Flyte's values"
    return f"ok: {has}"


def _security() -> str:
    """Return whether the pod is as Kubernetes' "restricted" standard has it, for what users' rewards could do in it."""
    status = dict(line.split(":\t", 1) for line in STATUS.read_text().splitlines() if ":\t" in line)
    violations = [
        violation
        for violation, is_so in {
            "it runs as root": os.getuid() == 0,
            "it may gain privileges": status["NoNewPrivs"] == "0",
            "it has capabilities": int(status["CapBnd"], 16) != 0,
            "its system calls are not filtered": status["Seccomp"] == "0",
            "it has a token of the service account": TOKEN.exists(),
        }.items()
        if is_so
    ]
    if not violations:
        return "ok: restricted, without a service account's token"
    return f"ok: not restricted ({'; '.join(violations)}); infra/flyte/pod-template.yaml makes it so"
