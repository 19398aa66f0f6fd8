"""Check whether a Flyte cluster is ready for Baton; each failure comes with a way out."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import grpc
from flyteidl.admin.agent_pb2 import ListAgentsRequest
from flyteidl.service.agent_pb2_grpc import AgentMetadataServiceStub
from flytekit.configuration import Config, ImageConfig
from flytekit.constants import CopyFileDetection
from flytekit.exceptions.base import FlyteException
from flytekit.models.core.execution import WorkflowExecutionPhase
from flytekit.remote import FlyteRemote
from flytekit.tools.fast_registration import FastPackageOptions

from infra.cluster.probe import looked
from infra.placement.config import TASK_TYPE
from infra.tracking.code import PROJECT

FAMILIES = ("baton-data", "baton-train", "baton-serve", "baton-post-train")
ANSWER_S = 10.0
POLL_S = 2
ERRORS = (FlyteException, grpc.RpcError, OSError, ValueError, AssertionError)  # flytekit's, for a cluster's faults

State = Literal["ok", "failed", "cannot be tried"]


@dataclass(frozen=True)
class Check:
    name: str
    state: State
    message: str


def checks(
    config_file: str | None, project: str, domain: str, connector: str | None, patience_s: int
) -> Iterator[Check]:
    """Run all checks, cheap ones first; those that depend on a failed one are not tried."""
    config = Config.auto(config_file)
    remote = FlyteRemote(config, default_project=project, default_domain=domain)
    admin = _admin(remote, config.platform.endpoint)
    images = _images(ImageConfig.auto(config_file))
    yield admin
    yield images
    yield _connector(connector)
    if admin.state != "ok" or images.state != "ok":
        why = "needs an admin that answers, and images"
        yield from (Check(name, "cannot be tried", why) for name in ("storage", "pod"))
        return
    storage = _storage(remote)
    yield storage
    if storage.state == "ok":
        yield from _pod(remote, ImageConfig.auto(config_file), patience_s)
    else:
        yield Check("pod", "cannot be tried", "its code is uploaded to the storage")


def _admin(remote: FlyteRemote, endpoint: str) -> Check:
    try:
        version = remote.client.get_control_plane_version()
    except ERRORS as error:
        way_out = "set admin.endpoint and admin.insecure in --config or FLYTECTL_CONFIG's file"
        return Check("admin", "failed", f"{endpoint} does not answer ({_short(error)}); {way_out}")
    return Check("admin", "ok", f"{endpoint}, Flyte {version or 'of an unknown version'}")


def _images(config: ImageConfig) -> Check:
    found = {image.name: image for image in config.images or ()}
    if missing := [name for name in FAMILIES if name not in found]:
        return Check(
            "images",
            "failed",
            f"{', '.join(missing)}: missing under images: in --config; `python -m images` adds them",
        )
    if tagged := [name for name in FAMILIES if not found[name].digest]:
        return Check("images", "failed", f"{', '.join(tagged)}: a tag can move to another image; use name@sha256:…")
    return Check("images", "ok", f"{len(FAMILIES)}, each pinned by digest")


def _connector(address: str | None) -> Check:
    if address is None:
        way_out = "kubectl -n flyte port-forward deployment/baton-connector 8000, and --connector 127.0.0.1:8000"
        return Check("connector", "cannot be tried", f"only Flyte's pods can reach it; to check it: {way_out}")
    try:
        with grpc.insecure_channel(address) as channel:
            agents = AgentMetadataServiceStub(channel).ListAgents(ListAgentsRequest(), timeout=ANSWER_S).agents
    except grpc.RpcError as error:
        return Check(
            "connector", "failed", f"{address}: {_short(error)}; kubectl -n flyte logs deployment/baton-connector"
        )
    kinds = {category.name for agent in agents for category in agent.supported_task_categories}
    if TASK_TYPE not in kinds:
        way_out = "start it with --modules infra.placement.connector"
        return Check("connector", "failed", f"{address} runs {', '.join(sorted(kinds))}, not {TASK_TYPE}; {way_out}")
    return Check("connector", "ok", f"{address} runs placed stages")


def _storage(remote: FlyteRemote) -> Check:
    """Upload a file as `pyflyte run` uploads the code."""
    with TemporaryDirectory() as folder:
        probe = Path(folder) / "probe.txt"
        probe.write_text("probe")
        try:
            _, there = remote.upload_file(probe)
        except ERRORS as error:
            way_out = "clients must be able to reach the URLs that admin signs (storage.signedURL.stowConfigOverride)"
            return Check("storage", "failed", f"{_short(error)}; {way_out}")
    return Check("storage", "ok", there)


def _pod(remote: FlyteRemote, images: ImageConfig, patience_s: int) -> Iterator[Check]:
    """Run the probe in a pod, and report its results."""
    try:
        options = FastPackageOptions([], copy_style=CopyFileDetection.ALL)
        registered = remote.register_script(
            looked,
            image_config=images,
            source_path=str(PROJECT),
            module_name=looked.__module__,
            fast_package_options=options,
        )
        execution = remote.execute(registered, inputs={})
        url = remote.generate_console_url(execution)
        execution = remote.wait(execution, timeout=patience_s, poll_interval=POLL_S, sync_nodes=False)
    except ERRORS as error:
        yield Check("pod", "failed", f"{_short(error)}; see `kubectl get events`, or the execution in Flyte's console")
        return
    if execution.closure.phase != WorkflowExecutionPhase.SUCCEEDED:
        message = execution.error.message if execution.error else "no message"
        yield Check("pod", "failed", f"{message.strip().splitlines()[-1].strip()}; {url}")
        return
    yield Check("pod", "ok", url)
    found: dict[str, str] = execution.outputs.get("o0", dict[str, str])
    for name, line in found.items():
        state, _, message = line.partition(": ")
        yield Check(name, "ok" if state == "ok" else "failed", message)


def _short(error: Any) -> str:
    """An error's message on one line."""
    message = error.details() if isinstance(error, grpc.Call) else str(error.__cause__ or error)
    return " ".join(message.split())[:300] or type(error).__name__
