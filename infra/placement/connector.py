"""A thin client of SkyPilot's API server: Flyte's create, get and delete for a managed job.

A job's name is made of what it does, so a `create` that is tried again (the answer was lost, the laptop was closed)
finds the job that runs instead of starting a second one.
"""

import json
import textwrap
import threading
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import requests
import sky
import yaml
from flyteidl.core import errors_pb2, literals_pb2
from flyteidl.core.execution_pb2 import TaskExecution, TaskLog
from flytekit import FlyteContextManager
from flytekit.core.utils import load_proto_from_file
from flytekit.extend.backend.base_connector import AsyncConnectorBase, ConnectorRegistry, Resource, ResourceMeta
from flytekit.models.literals import LiteralMap
from flytekit.models.task import TaskTemplate
from sky import exceptions, jobs
from sky.client import sdk
from sky.schemas.api.responses import ManagedJobRecord
from sky.server.common import get_server_url

from infra.errors import Stopped
from infra.placement.config import NO_IMAGE, Placement
from infra.placement.job import OUTPUT_PREFIX, Order, sky_task
from infra.placement.record import message, over_limit, where
from infra.placement.storage import storage_of
from infra.tracking.redact import redact_text

TASK_TYPE = "skypilot"
LOG_LINES = 30  # of a job that failed without a word

# Every status of a managed job: its phase for Flyte, and what it means to a person.
PHASES: dict[str, tuple[int, str]] = {
    "PENDING": (TaskExecution.QUEUED, "waits for a controller"),
    "SUBMITTED": (TaskExecution.QUEUED, "waits for a controller"),
    "STARTING": (TaskExecution.INITIALIZING, "looking for a place"),
    "RUNNING": (TaskExecution.RUNNING, "running"),
    "WINDING_DOWN": (TaskExecution.RUNNING, "ending"),
    "RECOVERING": (TaskExecution.INITIALIZING, "its machine is gone or failed; looking for another place"),
    "CANCELLING": (TaskExecution.RUNNING, "being cancelled"),
    "SUCCEEDED": (TaskExecution.SUCCEEDED, "done"),
    "CANCELLED": (TaskExecution.ABORTED, "was cancelled"),
    "FAILED": (TaskExecution.FAILED, "failed"),
    "FAILED_SETUP": (TaskExecution.FAILED, "failed: the machine could not be set up"),
    "FAILED_PRECHECKS": (TaskExecution.FAILED, "failed: no place is able to run it"),
    "FAILED_NO_RESOURCE": (TaskExecution.RETRYABLE_FAILED, "failed: no place has capacity"),
    "FAILED_CONTROLLER": (TaskExecution.RETRYABLE_FAILED, "failed: SkyPilot's controller had an error"),
}
FINAL = {"SUCCEEDED", "CANCELLED", *(status for status in PHASES if status.startswith("FAILED"))}
# What a question ends with when the server is away, or was started again meanwhile (RuntimeError: it knows of no such
# request; it is the base of SkyPilot's own word for a server that is away, too)
UNANSWERED = (
    requests.RequestException,
    RuntimeError,
    exceptions.ClusterNotUpError,
    exceptions.RequestCancelled,
    exceptions.RequestInterruptedError,
    exceptions.ServerTemporarilyUnavailableError,
)
UNREACHABLE = (exceptions.ApiServerConnectionError, requests.ConnectionError, requests.Timeout)


class NoApiServer(Stopped):
    """SkyPilot's API server cannot be had."""


@dataclass
class SkyJob(ResourceMeta):
    """What is known of a job: SkyPilot's id and its name, and where its outputs.pb will be."""

    name: str
    job_id: int
    output_prefix: str
    placement: dict[str, Any]


class SkyPilotConnector(AsyncConnectorBase):
    """Runs tasks of the type `skypilot` as SkyPilot's managed jobs."""

    name = "SkyPilot Connector"

    def __init__(self) -> None:
        super().__init__(task_type_name=TASK_TYPE, metadata_type=SkyJob)
        self._unwanted = threading.Event()

    def create(
        self, task_template: TaskTemplate, output_prefix: str, inputs: LiteralMap | None = None, **_: Any
    ) -> SkyJob:
        """Start the job, or find the one that runs. Raises NoApiServer, and what SkyPilot says of a wrong task."""
        name, order = _job_name(task_template, inputs), _order(task_template, inputs)
        try:
            found = next((record for record in _records(name_match=name) if _is_at_work(record, name)), None)
            if found is not None:
                return SkyJob(name, found.job_id or 0, _output_prefix(found), order.placement)
            container = task_template.container
            clouds = sdk.get(sdk.enabled_clouds()) if order.placement["exclude"] else []
            image = order.placement["image"] or container.image.replace(NO_IMAGE, "")
            config = sky_task(name, order, image, container.args, output_prefix, clouds)
            ids, _handle = sdk.get(jobs.launch(sky.Task.from_yaml_config(config), name=name))
            assert ids, "SkyPilot names the job that it starts"
        except UNREACHABLE as error:
            raise NoApiServer(f"{_server()} does not answer ({error}); `sky api start` starts one here") from error
        job = SkyJob(name, ids[0], output_prefix, order.placement)
        if self._unwanted.is_set():
            self.delete(job)
        return job

    def get(self, resource_meta: SkyJob, **_: Any) -> Resource:
        """How the job is. A server that does not answer is asked again: the job goes on without it."""
        if not _server_answers():
            return Resource(TaskExecution.RUNNING, f"{_server()} does not answer; asking again")
        try:
            (record,) = _records(job_ids=[resource_meta.job_id])
        except UNANSWERED as error:
            return Resource(TaskExecution.RUNNING, f"{_server()} does not answer; asking again ({error})")
        phase, words = PHASES[_status(record)]
        link = TaskLog(name=f"SkyPilot job {record.job_id}", uri=f"{get_server_url()}/dashboard/jobs/{record.job_id}")
        resource = Resource(phase, message(record, words), [link], custom_info=where(record))
        if phase == TaskExecution.SUCCEEDED:
            outputs = _read(literals_pb2.LiteralMap, f"{resource_meta.output_prefix}/outputs.pb")
            resource.outputs = LiteralMap.from_flyte_idl(outputs)
        elif _status(record) in FINAL:
            resource.message = f"{resource.message}\n{_why(resource_meta, record)}"
        elif over := over_limit(Placement.model_validate(resource_meta.placement), record):
            self.delete(resource_meta)
            resource.phase, resource.message = TaskExecution.FAILED, f"job {record.job_id} was cancelled: {over}"
        return resource

    def delete(self, resource_meta: SkyJob, **_: Any) -> None:
        """Cancel the job; one that is over is left as it is."""
        number = resource_meta.job_id
        try:
            (record,) = _records(job_ids=[number])
            if _status(record) not in FINAL:
                sdk.get(jobs.cancel(job_ids=[number]))
        except UNREACHABLE as error:
            raise NoApiServer(f"{_server()} does not answer: job {number} goes on; sky jobs cancel {number}") from error

    def give_up(self) -> None:
        """Whoever asked for the job that is being created has gone."""
        self._unwanted.set()


def _order(template: TaskTemplate, inputs: LiteralMap | None) -> Order:
    """What is to be done, where: the input `how` has the placement, which is this call's own."""
    how = json.loads(inputs.literals["how"].scalar.primitive.string_value) if inputs else {}
    placement = Placement.model_validate(how.get("placement") or {})
    common = dict(template.custom)
    if placement.storage:
        common["storage"] = storage_of(placement.storage)
    return Order(placement.model_dump(mode="json"), **common)


def _job_name(template: TaskTemplate, inputs: LiteralMap | None) -> str:
    """The same for the same work: the task, its version, and its inputs as Flyte's cache takes them."""
    identity = blake2b(f"{template.id.name}\0{template.metadata.discovery_version}".encode(), digest_size=6)
    for name, literal in sorted((inputs.literals if inputs else {}).items()):
        if name == "how":
            continue
        identity.update(f"{name}\0".encode())
        content = literal.to_flyte_idl().SerializeToString(deterministic=True)
        identity.update(literal.hash.encode() if literal.hash else content)
    stage = template.id.name.rpartition(".")[2].replace("_", "-")
    return f"baton-{stage}-{identity.hexdigest()}"


def _is_at_work(record: ManagedJobRecord, name: str) -> bool:
    return record.job_name == name and _status(record) not in {*FINAL, "CANCELLING"}


def _status(record: ManagedJobRecord) -> str:
    assert record.status is not None, "a job that is there has a status"
    return str(record.status.value)


def _output_prefix(record: ManagedJobRecord) -> str:
    _head, task = yaml.safe_load_all(record.user_yaml or "")
    return str(task["envs"][OUTPUT_PREFIX])


def _records(**words: Any) -> list[ManagedJobRecord]:
    found, *_counts = sdk.get(jobs.queue_v2(refresh=False, fields=None, **words))
    return list(found)


def _server() -> str:
    return f"SkyPilot's API server {redact_text(get_server_url())}"


def _server_answers() -> bool:
    """Asked first, since SkyPilot's client would start a server where it finds none."""
    try:
        return requests.get(f"{get_server_url()}/api/health", timeout=10).ok
    except requests.RequestException:
        return False


def _why(job: SkyJob, record: ManagedJobRecord) -> str:
    """What a failed job has to say: the task's own error, or SkyPilot's and the end of the log."""
    try:
        message = _read(errors_pb2.ErrorDocument, f"{job.output_prefix}/error.pb").error.message
    except FileNotFoundError:
        return f"{redact_text(record.failure_reason or '')}\n(its log: sky jobs logs {job.job_id})"
    return redact_text(textwrap.dedent(message.rpartition("Message:\n\n")[2]).partition(": ")[2])


def _read(kind: Any, uri: str) -> Any:
    """A protobuf message in storage. Raises FileNotFoundError."""
    access = FlyteContextManager.current_context().file_access
    if not access.exists(uri):
        raise FileNotFoundError(uri)
    with TemporaryDirectory() as folder:
        here = str(Path(folder) / "message.pb")
        access.get_data(uri, here)
        return load_proto_from_file(kind, here)


ConnectorRegistry.register(SkyPilotConnector())
