"""Calls to SkyPilot's API server. Each blocks until the server has answered."""

import io
import json
from typing import Any

import requests
import yaml
from sky import exceptions, jobs
from sky.client import sdk
from sky.schemas.api.responses import ManagedJobRecord
from sky.server.common import RequestId, get_server_url
from sky.server.requests.request_names import RequestName
from sky.server.requests.requests import RequestStatus

from baton.infra.placement.background_queries import BackgroundQueries
from baton.infra.placement.job import OUTPUT_PREFIX
from baton.infra.placement.skypilot import sky
from baton.infra.text import uncoloured
from baton.infra.tracking.redact import redact_text

LOG_PATIENCE_S = 20.0
KEY_LINES = 200  # read before the shown lines, since a private key may begin there

# Errors of an unreachable server, or of one that restarts during a call
AWAY = (
    requests.RequestException,
    exceptions.ApiServerConnectionError,
    exceptions.RequestCancelled,
    exceptions.RequestInterruptedError,
    exceptions.ServerTemporarilyUnavailableError,
)
# RuntimeError: the request is unknown to a restarted server
UNANSWERED = (*AWAY, RuntimeError, exceptions.ClusterNotUpError)


def shown() -> str:
    """The server's name for messages, without secrets."""
    return f"SkyPilot's API server {redact_text(get_server_url())}"


def dashboard(number: int | None) -> str:
    return f"{get_server_url()}/dashboard/jobs/{number}"


def answers() -> bool:
    """Return whether the server is reachable. Call it first: SkyPilot's client would start a missing server."""
    try:
        return requests.get(f"{get_server_url()}/api/health", timeout=10).ok
    except requests.RequestException:
        return False


def jobs_named(name: str) -> list[ManagedJobRecord]:
    """Return all managed jobs with this name, oldest first. Raises RuntimeError for an error within the server: on a
    busy machine its own query of the jobs may be cut off."""
    try:
        records, *_counts = sdk.get(jobs.queue_v2(refresh=False, fields=None, name_match=name))
    except exceptions.CloudError as error:
        raise RuntimeError(str(error)) from error
    return sorted((record for record in records if record.job_name == name), key=lambda record: record.job_id or 0)


def is_launching(name: str) -> bool:
    """Return whether the server is processing a launch of a job with this name. Call it before `jobs_named`: a launch
    that ends between the two calls has its job in the queue."""
    launches = [request for request in sdk.api_status() if request.name.endswith(RequestName.JOBS_LAUNCH)]
    return any((json.loads(request.request_body) or {}).get("name") == name for request in launches)


def launch(name: str, task: sky.Task) -> RequestId[Any]:
    """Submit a job to the server. It is launched when the request has ended: see `wait`."""
    request: RequestId[Any] = jobs.launch(task, name=name)
    return request


def wait(request: RequestId[Any]) -> None:
    sdk.get(request)


def enabled_clouds() -> list[str]:
    request: RequestId[Any] = sdk.enabled_clouds()
    return list(sdk.get(request))


def cancel(numbers: list[int]) -> None:
    sdk.get(jobs.cancel(job_ids=numbers))


def status(record: ManagedJobRecord) -> str:
    assert record.status is not None, "an existing job has a status"
    return str(record.status.value)


def has_task(record: ManagedJobRecord) -> bool:
    """Return whether the server knows the job's task. A submission that was cut off leaves a record without it."""
    return bool((record.user_yaml or "").strip())


def output_prefix(record: ManagedJobRecord) -> str | None:
    """The place where the job writes its outputs, or None if it is not the job of a stage."""
    return _environment(record).get(OUTPUT_PREFIX)


def execution(record: ManagedJobRecord) -> str:
    """The tracked execution that the job belongs to."""
    return _environment(record)["BATON_EXECUTION"]


def _environment(record: ManagedJobRecord) -> dict[str, str]:
    *_head, task = yaml.safe_load_all(record.user_yaml or "{}")
    return dict((task or {}).get("envs") or {})


def has_waiting_requests() -> bool:
    """Return whether the server has requests that it has not begun."""
    return any(request.status == RequestStatus.PENDING.value for request in sdk.api_status())


def log_end(number: int, lines: int, controller: bool = False) -> str:
    """The last lines of a job's log, or of its controller's log, redacted; empty if there is no log, or it is not
    available soon."""
    text = io.StringIO()
    queries = BackgroundQueries()
    read = lines + KEY_LINES
    queries.start(
        "log",
        lambda: jobs.tail_logs(job_id=number, follow=False, controller=controller, tail=read, output_stream=text),
    )
    try:
        queries.result("log", LOG_PATIENCE_S)
    except (TimeoutError, *UNANSWERED):
        pass
    plain = uncoloured(text.getvalue()).replace("\r", "\n")
    return "\n".join([line.rstrip() for line in redact_text(plain).splitlines() if line.strip()][-lines:])
