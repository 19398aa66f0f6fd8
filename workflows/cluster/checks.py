"""Check whether a Flyte cluster is ready for Baton; each failure comes with a way out."""

import re
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from flytekit import WorkflowExecutionPhase
from flytekit.configuration import Config, ImageConfig
from flytekit.exceptions.user import FlyteTimeout
from flytekit.remote import FlyteRemote

from baton.infra.flyte.admin import ERRORS, admin_version, pod_reason, short, start, task_types
from baton.infra.placement.config import TASK_TYPE
from baton.infra.pod_spec import PodSpec, in_bytes, in_cores
from baton.infra.text import clause
from baton.infra.tracking.code import PROJECT
from baton.workflows.cluster.probe import look, looked
from baton.workflows.cluster.remote import StagePod, absent_images, images_needed, without_image

POLL_S = 2
SLICE_S = 10  # between two questions why the pod has not ended
PULL_S = 60  # for which an image that cannot be pulled may be a registry's short outage
NO_PULL = "ImagePullBackOff|ErrImagePull"

# what Flyte says of a pod that failed or waits, and what to do about it; the first that fits
CURES = {
    "exceeded quota|Insufficient": "no node, or the namespace's quota, has room for the largest stage's pod",
    "runAsNonRoot|PodSecurity": "apply infra/flyte/pod-template.yaml and set default-pod-template-name",
    "ImagePull|ErrImage|pull access": "the nodes cannot pull the image: check its name and the pull secret",
    r"OOMKilled|exit code \(137\)": "the pod has too little memory: raise task_resources in Flyte's values",
    "credential|access ?denied|forbidden|InvalidAccessKeyId|SignatureDoesNotMatch|NoSuchBucket": (
        "give the pods access to the storage: default-env-from-secrets or a role of their service account, as "
        "infra/flyte/values.yaml shows"
    ),
}

State = Literal["ok", "failed", "cannot be tried"]


@dataclass(frozen=True)
class Check:
    name: str
    state: State
    message: str


def checks(
    config_file: str | None,
    project: str,
    domain: str,
    connector: str | None,
    patience_s: int,
    pods: list[StagePod],
    environment: dict[str, str],
) -> Iterator[Check]:
    """Run all checks, cheap ones first; those that depend on a failed one are not tried. `pods`, `environment`: of the
    run to come."""
    config = Config.auto(config_file)
    remote = FlyteRemote(config, default_project=project, default_domain=domain)
    admin = _admin(remote, config.platform.endpoint)
    images = _images(ImageConfig.auto(config_file), images_needed(pods))
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
        yield from _pod(remote, ImageConfig.auto(config_file), patience_s, largest(pods), environment)
    else:
        yield Check("pod", "cannot be tried", "its code is uploaded to the storage")


def largest(pods: Iterable[StagePod]) -> StagePod:
    """By GPUs, then memory, then cores."""

    def size(pod: StagePod) -> tuple[float, float, float]:
        asked = pod.asked
        return asked.gpu or 0, in_bytes(asked.memory or "0"), in_cores(asked.cpu or 0)

    return max(pods, key=size)


def _admin(remote: FlyteRemote, endpoint: str) -> Check:
    try:
        version = admin_version(remote)
    except ERRORS as error:
        fix = "set admin.endpoint and admin.insecure in --config or FLYTECTL_CONFIG's file"
        return Check("admin", "failed", f"{endpoint} does not answer ({short(error)}); {fix}")
    return Check("admin", "ok", f"{endpoint}, Flyte {version or 'of an unknown version'}")


def _images(config: ImageConfig, needed: list[str]) -> Check:
    by_name = {image.name: image for image in config.images or ()}
    if missing := without_image(config, needed):
        return Check(
            "images",
            "failed",
            f"{', '.join(missing)}: missing under images: in --config; `baton images` adds them, and --recipe FILE "
            "asks for those of its stages alone",
        )
    if tagged := [name for name in needed if name not in by_name or not by_name[name].digest]:
        return Check("images", "failed", f"{', '.join(tagged)}: a tag can move to another image; use name@sha256:…")
    if unavailable := absent_images(config, needed):
        return Check("images", "failed", unavailable)
    return Check("images", "ok", f"{', '.join(needed)}: pinned by digest")


def _connector(address: str | None) -> Check:
    if address is None:
        fix = "kubectl -n flyte port-forward deployment/baton-connector 8000, and --connector 127.0.0.1:8000"
        return Check("connector", "cannot be tried", f"only Flyte's pods can reach it; to check it: {fix}")
    try:
        kinds = task_types(address)
    except ERRORS as error:
        return Check(
            "connector", "failed", f"{address}: {short(error)}; kubectl -n flyte logs deployment/baton-connector"
        )
    if TASK_TYPE not in kinds:
        fix = "start it with --modules baton.infra.flyte.connector"
        return Check("connector", "failed", f"{address} runs {', '.join(sorted(kinds))}, not {TASK_TYPE}; {fix}")
    return Check("connector", "ok", f"{address} runs placed stages")


def _storage(remote: FlyteRemote) -> Check:
    """Upload a file as `pyflyte run` uploads the code."""
    with TemporaryDirectory() as folder:
        probe = Path(folder) / "probe.txt"
        probe.write_text("probe")
        try:
            _, address = remote.upload_file(probe)
        except ERRORS as error:
            fix = "clients must be able to reach the URLs that admin signs (storage.signedURL.stowConfigOverride)"
            return Check("storage", "failed", f"{short(error)}; {fix}")
    return Check("storage", "ok", address)


def _pod(
    remote: FlyteRemote, images: ImageConfig, patience_s: int, asks: StagePod, environment: dict[str, str]
) -> Iterator[Check]:
    """Run the probe in a pod that asks for what the largest stage asks for, and report its results."""
    execution = None
    try:
        execution = start(
            remote,
            looked(PodSpec(resources=asks.asked)),
            project=PROJECT,
            module=look.__module__,
            version=f"check-{uuid.uuid4().hex[:12]}",  # Flyte refuses another pod under a version that it knows
            images=images,
            inputs={"title": asks.title, "asked": asks.asked.model_dump_json(exclude_none=True)},
            environment=environment,
        )
        url = remote.generate_console_url(execution)
        began = time.monotonic()
        execution = _waited_for(remote, execution, patience_s)
        if not execution.is_done:
            reason = _pending(remote, execution) or "Flyte gives no reason; see `kubectl get events`"
            limit = f"{patience_s} s (--patience)" if (seconds := time.monotonic() - began) >= patience_s else ""
            after = limit or f"{seconds:.0f} s"
            yield Check("pod", "failed", f"not ended after {after}, and so aborted: {clause(reason)}{cure(reason)}")
            return
    except ERRORS as error:
        yield Check("pod", "failed", f"{short(error)}; see `kubectl get events`, or the execution in Flyte's console")
        return
    finally:
        if execution is not None and not execution.is_done:
            remote.terminate(execution, "baton cluster check has ended")
    if execution.closure.phase != WorkflowExecutionPhase.SUCCEEDED:
        message = execution.error.message if execution.error else ""
        yield Check("pod", "failed", f"{clause(telling(message)) or 'Flyte gives no reason'}{cure(message)}; {url}")
        return
    yield Check("pod", "ok", url)
    lines: dict[str, str] = execution.outputs.get("found", dict[str, str])
    for name, line in lines.items():
        state, _, message = line.partition(": ")
        yield Check(name, "ok" if state == "ok" else "failed", message)


def _waited_for(remote: FlyteRemote, execution: Any, patience_s: float) -> Any:
    """The execution once it has ended, the patience is exhausted, or its image could not be pulled for PULL_S: Flyte
    itself tries that three times for three minutes each."""
    until = time.monotonic() + patience_s
    refused: float | None = None  # since when
    while (left := until - time.monotonic()) > 0:
        with suppress(FlyteTimeout):
            return remote.wait(execution, timedelta(seconds=min(SLICE_S, left)), POLL_S, sync_nodes=False)
        now = time.monotonic()
        refused = (refused or now) if re.search(NO_PULL, _pending(remote, execution)) else None
        if refused and now - refused > PULL_S:
            break
    return execution


def _pending(remote: FlyteRemote, execution: Any) -> str:
    """Why an execution's newest pod is not done."""
    try:
        return telling(pod_reason(remote, execution))
    except ERRORS as error:
        return f"Flyte does not tell why ({short(error)})"


def telling(message: str) -> str:
    """The last line of Flyte's message that says something: a pod's ends with a line of a full stop."""
    lines = [" ".join(line.split()) for line in message.splitlines()]
    return next((line for line in reversed(lines) if re.search(r"\w", line)), "")[:300]


def cure(message: str) -> str:
    """Return the way out of a failure, if it is known."""
    return next((f"; {words}" for pattern, words in CURES.items() if re.search(pattern, message, re.IGNORECASE)), "")
