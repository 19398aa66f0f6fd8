"""What Baton asks of SkyPilot's API server. Each call takes as long as the server does."""

import io
import json
import re
from typing import Any

import requests
import sky
import yaml
from sky import exceptions, jobs
from sky.client import sdk
from sky.schemas.api.responses import ManagedJobRecord
from sky.server.common import RequestId, get_server_url
from sky.server.requests.request_names import RequestName

from infra.placement.asked import Asked
from infra.placement.job import OUTPUT_PREFIX
from infra.tracking.redact import redact_text

LOG_PATIENCE_S = 20.0
_COLOURS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")

# A call ends so when the server is away, or is started again meanwhile
AWAY = (
    requests.RequestException,
    exceptions.ApiServerConnectionError,
    exceptions.RequestCancelled,
    exceptions.RequestInterruptedError,
    exceptions.ServerTemporarilyUnavailableError,
)
# RuntimeError: the server that was started again does not know the request
UNANSWERED = (*AWAY, RuntimeError, exceptions.ClusterNotUpError)


def shown() -> str:
    """The server, as it may be shown."""
    return f"SkyPilot's API server {redact_text(get_server_url())}"


def dashboard(number: int | None) -> str:
    return f"{get_server_url()}/dashboard/jobs/{number}"


def answers() -> bool:
    """Ask this first: SkyPilot's client would start a server where it finds none."""
    try:
        return requests.get(f"{get_server_url()}/api/health", timeout=10).ok
    except requests.RequestException:
        return False


def jobs_named(name: str) -> list[ManagedJobRecord]:
    """All managed jobs of a name, oldest first."""
    found, *_counts = sdk.get(jobs.queue_v2(refresh=False, fields=None, name_match=name))
    return sorted((record for record in found if record.job_name == name), key=lambda record: record.job_id or 0)


def is_launching(name: str) -> bool:
    """Whether a launch of a job of this name was handed to the server and has not ended there. Ask this before
    `jobs_named`: a launch that ends between the two has its job in the queue."""
    launches = [each for each in sdk.api_status() if each.name.endswith(RequestName.JOBS_LAUNCH)]
    return any((json.loads(each.request_body) or {}).get("name") == name for each in launches)


def launch(name: str, task: sky.Task) -> RequestId[Any]:
    """Hand a job to the server. It is launched when the request has ended: see `wait`."""
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
    assert record.status is not None, "a job that is there has a status"
    return str(record.status.value)


def output_prefix(record: ManagedJobRecord) -> str:
    """Where a job of ours leaves its outputs."""
    return _environment(record)[OUTPUT_PREFIX]


def execution(record: ManagedJobRecord) -> str:
    """The tracked one that a job of ours belongs to."""
    return _environment(record)["BATON_EXECUTION"]


def _environment(record: ManagedJobRecord) -> dict[str, str]:
    _head, task = yaml.safe_load_all(record.user_yaml or "")
    return dict(task["envs"])


def log_end(number: int, lines: int) -> str:
    """The last lines of a job's log, without secrets; empty when there is none, or it cannot be had soon."""
    text = io.StringIO()
    asked = Asked()
    asked.begin("log", lambda: jobs.tail_logs(job_id=number, follow=False, tail=lines, output_stream=text))
    try:
        asked.take("log", LOG_PATIENCE_S)
    except (TimeoutError, *UNANSWERED):
        pass
    said = _COLOURS.sub("", text.getvalue()).replace("\r", "\n")
    return redact_text("\n".join([line.rstrip() for line in said.splitlines() if line.strip()][-lines:]))
