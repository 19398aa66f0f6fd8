"""A Flyte connector for SkyPilot's managed jobs: a stateless client of SkyPilot's API server.

A job's name is derived from its work. `create` only returns the name and the data needed to launch the job, so it never
waits for SkyPilot. `get` finds the job by its name, or launches it. `delete` cancels it, even during its launch, unless
another execution uses the same job. A restarted connector continues, but does not know which executions use a job until
they call `get` again. An execution whose job was cancelled for another execution launches it again.
"""

import asyncio
import os
import textwrap
import threading
import time
import traceback
from concurrent.futures import Future
from dataclasses import dataclass, replace
from hashlib import blake2b
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from flyteidl.core import errors_pb2
from flyteidl.core.execution_pb2 import TaskExecution, TaskLog
from flytekit import FlyteContextManager
from flytekit.core.type_engine import TypeEngine
from flytekit.core.utils import load_proto_from_file
from flytekit.exceptions.base import FlyteException
from flytekit.extend.backend.base_connector import AsyncConnectorBase, ConnectorRegistry, Resource, ResourceMeta
from flytekit.extend.backend.utils import is_terminal_phase
from flytekit.models.literals import LiteralMap
from flytekit.models.task import TaskExecutionMetadata, TaskTemplate
from sky import exceptions
from sky.schemas.api.responses import ManagedJobRecord

from baton.infra.commands import command
from baton.infra.errors import UserError
from baton.infra.flyte.options import OPTIONS, Options
from baton.infra.image_registry import absent
from baton.infra.placement import api_server
from baton.infra.placement.api_server import AWAY, UNANSWERED
from baton.infra.placement.background_queries import BackgroundQueries
from baton.infra.placement.config import NO_IMAGE, TASK_TYPE, Placement
from baton.infra.placement.failure import failure
from baton.infra.placement.job import STORAGE, Order, sky_task
from baton.infra.placement.prices import ordered
from baton.infra.placement.record import message, over_limit, unchecked_limit, where, with_machine
from baton.infra.placement.skypilot import sky
from baton.infra.placement.waiting import BACKOFF, STARTING, FailedLaunch, failed_launch, waits_for
from baton.infra.pod import execution_name
from baton.infra.progress import say
from baton.infra.storage.buckets import storage_of
from baton.infra.tracking.machine import lineage_page
from baton.infra.tracking.placement_tags import note
from baton.infra.tracking.redact import redact_text
from baton.infra.tracking.store import PushFailed

ANSWER_S = 3.0  # Flyte's timeout for a connector's response is 10 s
RETRY_S = 2.0  # interval of attempts to cancel
WANTED_S = 300.0  # an execution that uses a job calls `get` more often than this
LOG_LINES = 30  # lines of a failed job's log that are read
CONTROLLER_LINES = 400  # lines of a waiting job's controller log that are read, several per tried place
CAUSE_S = 20.0  # interval of reading that log
STUCK_S = 120.0  # time after which an unanswered request is reported

# Every status of a managed job, with its phase for Flyte and its message
PHASES: dict[str, tuple[int, str]] = {
    "PENDING": (TaskExecution.QUEUED, "submitted; SkyPilot has not begun it yet"),
    "SUBMITTED": (TaskExecution.QUEUED, "submitted; SkyPilot has not begun it yet"),
    "STARTING": (TaskExecution.INITIALIZING, "looking for capacity"),
    "RUNNING": (TaskExecution.RUNNING, "running"),
    "WINDING_DOWN": (TaskExecution.RUNNING, "ending"),
    "RECOVERING": (TaskExecution.INITIALIZING, "its machine was lost or failed; looking for capacity"),
    "CANCELLING": (TaskExecution.RUNNING, "being cancelled"),
    "SUCCEEDED": (TaskExecution.SUCCEEDED, "done"),
    "CANCELLED": (TaskExecution.ABORTED, "was cancelled"),
    "FAILED": (TaskExecution.FAILED, "failed"),
    "FAILED_SETUP": (TaskExecution.FAILED, "failed: the machine could not be set up"),
    "FAILED_PRECHECKS": (TaskExecution.FAILED, "failed before a machine was rented"),
    "FAILED_NO_RESOURCE": (TaskExecution.RETRYABLE_FAILED, "failed: no place has capacity"),
    "FAILED_CONTROLLER": (TaskExecution.RETRYABLE_FAILED, "failed: SkyPilot's controller had an error"),
}
FINAL = {"SUCCEEDED", "CANCELLED", *(status for status in PHASES if status.startswith("FAILED"))}
# Errors that a retry would not fix; after any other error, the launch may be retried
WRONG = (
    UserError,
    ValueError,
    exceptions.APIVersionMismatchError,
    exceptions.ApiServerAuthenticationError,
    exceptions.NoCloudAccessError,
    exceptions.NotSupportedError,
    exceptions.PermissionDeniedError,
    exceptions.ResourcesMismatchError,
    exceptions.UserRequestRejectedByPolicy,
)


class NoApiServer(UserError):
    """Raised if SkyPilot's API server is unreachable."""


@dataclass
class SkyJob(ResourceMeta):
    """The data that is needed to find a job, or to launch it."""

    name: str
    output_prefix: str  # folder of its outputs.pb
    order: Order
    image: str
    command: list[str]

    @property
    def key(self) -> str:
        """The key of the attempt at the work that `name` identifies."""
        return f"{self.name} {self.output_prefix}"


class SkyPilotConnector(AsyncConnectorBase):
    """Runs tasks of type `skypilot` as SkyPilot's managed jobs."""

    name = "SkyPilot Connector"

    def __init__(self) -> None:
        super().__init__(task_type_name=TASK_TYPE, metadata_type=SkyJob)
        self._queries = BackgroundQueries()
        self._starting = threading.Lock()  # launches are submitted one at a time
        self._created: set[str] = set()  # keys of the jobs that this process has created
        self._submitted: set[str] = set()  # keys of the jobs whose launch this process has submitted
        self._reported_states: dict[str, tuple[int, str]] = {}  # by key: phase and message as last reported
        self._unwanted: set[str] = set()  # keys of deleted jobs
        self._wanted: dict[str, tuple[str, float]] = {}  # by key: the job's name, and the time of its last `get`
        self._recorded: dict[str, dict[str, Any]] = {}  # by key: the place in the stage's record
        self._last_seen: dict[str, tuple[ManagedJobRecord, Resource]] = {}  # by key: the last record and state
        self._asked: dict[str, float] = {}  # by key: start of waiting for an answer of the server
        self._failed_launches: dict[str, tuple[float, FailedLaunch | None]] = {}  # by key: time of reading, launch
        self.logs_states = True  # false in a stage's process, which shows its job's states itself

    def create(
        self,
        task_template: TaskTemplate,
        output_prefix: str,
        inputs: LiteralMap | None = None,
        task_execution_metadata: TaskExecutionMetadata | None = None,
        **_: Any,
    ) -> SkyJob:
        """Return the job without launching it: if the response were lost, a launched job would have no owner."""
        order = _make_order(task_template, inputs, task_execution_metadata)
        container = task_template.container
        image = order.placement["image"] or container.image.replace(NO_IMAGE, "")
        job = SkyJob(_job_name(task_template, inputs), output_prefix, order, image, container.args)
        self._created.add(job.key)
        return job

    async def get(self, resource_meta: SkyJob, **_: Any) -> Resource:
        """Return the job's state, and launch the job if it does not exist. An unreachable server is queried again at
        the next call, since the job continues without it."""
        job = resource_meta
        self._wanted[job.key] = job.name, time.monotonic()
        answer = self._queries.start(job.key, lambda: self._look(job))
        asked = self._asked.setdefault(job.key, time.monotonic())
        await _ended(answer)
        if not answer.done():
            if time.monotonic() - asked > STUCK_S and (stuck := await self._stuck(job)):
                return self._reported(job, stuck)
            return self._reported(job, self._previous(job) or self._unanswered(job))
        self._asked.pop(job.key, None)
        resource: Resource = self._queries.result(job.key)
        if is_terminal_phase(resource.phase):
            self._wanted.pop(job.key, None)
        return self._reported(job, resource)

    def _reported(self, job: SkyJob, resource: Resource) -> Resource:
        """Return the resource, after logging it if it has changed."""
        state = resource.phase, resource.message or ""
        if self._reported_states.get(job.key) != state:
            self._reported_states[job.key] = state
            if self.logs_states:
                say(f"{job.name}: {TaskExecution.Phase.Name(state[0])}: {redact_text(state[1])}")
        return resource

    async def _stuck(self, job: SkyJob) -> Resource | None:
        """Return the state for a server that accepts requests but does not work on them, since its executors have ended
        or are all busy; None for other servers."""
        answer = self._queries.start("stuck", api_server.has_waiting_requests)
        await _ended(answer)
        if not answer.done():
            return None
        try:
            if not self._queries.result("stuck"):
                return None
        except UNANSWERED:
            return None
        minutes = (time.monotonic() - self._asked[job.key]) / 60
        resource = self._unreachable(job)
        resource.message = (
            f"{job.name}: {api_server.shown()} answers, but has not begun a request for {minutes:.0f} minutes. If its "
            "executors have ended, restart it: sky api stop; sky api start"
        )
        return resource

    def _unanswered(self, job: SkyJob) -> Resource:
        """Return the state while the server has not answered: the previous one if it was unreachable."""
        phase, message = self._reported_states.get(job.key, (TaskExecution.UNDEFINED, ""))
        if phase == TaskExecution.WAITING_FOR_RESOURCES:
            return Resource(phase, message)
        return self._unknown(job, f"waiting for {api_server.shown()}")

    async def delete(self, resource_meta: SkyJob, **_: Any) -> None:
        """Cancel the job, even during its launch, unless it has ended. Raises NoApiServer if this takes too long; the
        cancellation continues in the background, and the method may be called again."""
        await _ended(self._start_cancel(resource_meta))
        self.wait_for_cancellation(resource_meta, 0)

    def wait_for_cancellation(self, job: SkyJob, patience_s: float) -> None:
        """Cancel the job like `delete`, with another timeout."""
        self._start_cancel(job)
        try:
            self._queries.result(f"delete {job.key}", patience_s)
        except TimeoutError:
            raise NoApiServer(
                f"{api_server.shown()} has not cancelled {job.name} yet; still trying. To cancel it by hand: "
                f"sky jobs cancel --name {job.name}"
            ) from None

    def _start_cancel(self, job: SkyJob) -> Future[None]:
        self._unwanted.add(job.key)
        self._wanted.pop(job.key, None)
        return self._queries.start(f"delete {job.key}", lambda: self._cancel(job))

    def _unknown(self, job: SkyJob, reason: str) -> Resource:
        before = self._previous(job)
        return Resource(before.phase if before else TaskExecution.QUEUED, f"{job.name}: {reason}")

    def _unreachable(self, job: SkyJob, details: str = "") -> Resource:
        """Return the state for an unreachable server. If the job was not running, the phase is one whose message Flyte
        shows, since Flyte keeps the first message in QUEUED."""
        resource = self._unknown(job, f"{api_server.shown()} is unreachable; retrying{details}")
        if resource.phase != TaskExecution.RUNNING:
            resource.phase = TaskExecution.WAITING_FOR_RESOURCES
        return resource

    def _previous(self, job: SkyJob) -> Resource | None:
        """Return the job's last known state. A job that had ended counts as running, since its result was not reported
        yet."""
        if job.key not in self._last_seen:
            return None
        _record, seen = self._last_seen[job.key]
        phase = TaskExecution.RUNNING if is_terminal_phase(seen.phase) else seen.phase
        return Resource(phase, seen.message, seen.log_links, custom_info=seen.custom_info)

    def _look(self, job: SkyJob) -> Resource:
        if not api_server.answers():
            return self._unreachable(job)
        try:
            if (record := self._record_of(job)) is None:
                return self._launched(job)
            return self._resource(job, record)
        except UNANSWERED as error:
            return self._unreachable(job, f" ({_describe(error)})")
        except (OSError, FlyteException) as error:
            return self._unknown(job, f"{job.output_prefix} cannot be read; retrying ({_describe(error)})")

    def _record_of(self, job: SkyJob) -> ManagedJobRecord | None:
        """Return the job that was seen before, else an active job with this name from any launch, else this attempt's
        ended job. A second active job, left by a launch whose response was lost, is cancelled. Cancelled jobs of other
        attempts are ignored, as are jobs without a task, left by submissions that were cut off."""
        records = [record for record in api_server.jobs_named(job.name) if api_server.output_prefix(record)]
        at_work = [record for record in records if api_server.status(record) not in {*FINAL, "CANCELLING"}]
        if twins := [record.job_id for record in at_work[1:] if record.job_id is not None]:
            api_server.cancel(twins)
        last, _ = self._last_seen.get(job.key, (None, None))
        number = last.job_id if last else None
        of_attempt = [record for record in records if api_server.output_prefix(record) == job.output_prefix]
        ended = [record for record in of_attempt if api_server.status(record) != "CANCELLED"] or of_attempt
        others = [record for record in records if api_server.status(record) == "CANCELLED" and record not in of_attempt]
        seen = [record for record in records if record.job_id == number and record not in others]
        return next(iter([*seen, *at_work[:1], *ended[-1:]]), None)

    def _launched(self, job: SkyJob) -> Resource:
        """Launch the job, unless that is in progress or the job was deleted."""
        try:
            with self._starting:
                if job.key in self._unwanted:
                    return Resource(TaskExecution.ABORTED, f"{job.name} was cancelled before it was launched")
                if api_server.is_launching(job.name) or self._record_of(job) is not None:
                    return self._unknown(job, "being launched")
                self._cancel_fragments(job.name)
                refuse_absent(job.image)
                clouds = api_server.enabled_clouds()
                resources = ordered(Placement.model_validate(job.order.placement), job.image or None, clouds)
                config = sky_task(job.name, job.order, resources, job.command, job.output_prefix)
                self._submitted.add(job.key)
                request = api_server.launch(job.name, sky.Task.from_yaml_config(config))
            api_server.wait(request)
        except AWAY:
            raise
        except WRONG as error:
            return Resource(TaskExecution.FAILED, f"{job.name} cannot be launched: {_describe(error)}")
        except Exception as error:  # all other failures of SkyPilot
            say(redact_text(traceback.format_exc()))
            return Resource(TaskExecution.RETRYABLE_FAILED, f"{job.name} was not launched: {_describe(error)}")
        return self._unknown(job, "launched")

    def _cancel_fragments(self, name: str) -> None:
        """Cancel jobs left by submissions that were cut off, so that SkyPilot does not rent machines for them."""
        left = [record for record in api_server.jobs_named(name) if not api_server.has_task(record)]
        numbers = [record.job_id for record in left if record.job_id and api_server.status(record) not in FINAL]
        if numbers:
            say(f"{name}: cancelling SkyPilot's job {', '.join(map(str, numbers))}, whose submission was cut off")
            api_server.cancel(numbers)

    def _failed_launch(self, job: SkyJob, record: ManagedJobRecord) -> FailedLaunch | None:
        """Return the last failed launch of a job that looks for machines, from its controller's log."""
        read, known = self._failed_launches.setdefault(job.key, (time.monotonic(), None))
        if time.monotonic() - read > CAUSE_S or (known is None and record.schedule_state == BACKOFF):
            log = api_server.log_end(record.job_id or 0, CONTROLLER_LINES, controller=True)
            known = failed_launch(log) or known
            self._failed_launches[job.key] = time.monotonic(), known
        return known

    def _resource(self, job: SkyJob, record: ManagedJobRecord) -> Resource:
        """Convert a managed job to Flyte's resource."""
        limits = Placement.model_validate(job.order.placement)
        before, _ = self._last_seen.get(job.key, (None, None))
        record = with_machine(record, before)
        status, number = api_server.status(record), record.job_id or 0
        phase, state = PHASES[status]
        if status in STARTING:
            state = waits_for(record, state, self._failed_launch(job, record))
            if record.schedule_state == BACKOFF:  # Flyte shows only the first message in QUEUED
                phase = TaskExecution.WAITING_FOR_RESOURCES
        else:
            self._failed_launches.pop(job.key, None)
        links = [TaskLog(name=f"SkyPilot job {number}", uri=api_server.dashboard(number))]
        if page := lineage_page(api_server.execution(record), os.environ | job.order.environment):
            links.append(TaskLog(name="Lineage", uri=page))
        resource = Resource(phase, message(record, state, status not in STARTING), links, custom_info=where(record))
        self._last_seen[job.key] = record, replace(resource)
        self._record(job, record, status in FINAL)
        if phase == TaskExecution.SUCCEEDED:
            return _copy_outputs(resource, api_server.output_prefix(record) or "", job.output_prefix)
        if status in FINAL:
            why, may_be_retried, is_the_stage_s = _failure_reason(record)
            # If a job had no machine, only the controller has a log
            is_controller_s = not record.start_at and status != "FAILED"
            log = "" if is_the_stage_s or (why and is_controller_s) else api_server.log_end(number, LOG_LINES)
            way_out = f"Full log: sky jobs logs {'--controller ' * is_controller_s}{number}"
            resource.message = failure(resource.message or "", why, log, way_out)
            if phase == TaskExecution.FAILED and may_be_retried:
                resource.phase = TaskExecution.RETRYABLE_FAILED
        elif over := over_limit(limits, record):
            api_server.cancel([number])
            resource.phase, resource.message = TaskExecution.FAILED, f"{message(record, 'was cancelled')}: {over}"
        elif unchecked := unchecked_limit(limits, record):
            resource.message = f"{resource.message}; {unchecked}"
        return resource

    def _record(self, job: SkyJob, record: ManagedJobRecord, ended: bool) -> None:
        """Add the job's place to the stage's record. This is retried at each `get` until it succeeds or the job has
        ended."""
        if self._recorded.get(job.key) == (facts := where(record)):
            return
        try:
            known = note(os.environ | job.order.environment, api_server.execution(record), job.name, facts)
        except PushFailed as error:
            known = False
            if ended:
                say(f"tracking: {job.name}: its place and price could not be recorded: {redact_text(str(error))}")
        if known:
            self._recorded[job.key] = facts

    def _cancel(self, job: SkyJob) -> None:
        """Cancel the job, with retries, unless another execution uses it."""
        say(f"{job.name}: to be cancelled")
        while not self._is_wanted(job.name) and not self._is_cancelled(job):
            time.sleep(RETRY_S)
        say(f"{job.name}: {'another execution uses it' if self._is_wanted(job.name) else 'cancelled'}")

    def _is_wanted(self, name: str) -> bool:
        since = time.monotonic() - WANTED_S
        return any(expected == name and asked > since for expected, asked in list(self._wanted.values()))

    def _is_cancelled(self, job: SkyJob) -> bool:
        with self._starting:
            pass  # wait for a launch that is being submitted; no other can follow
        if not api_server.answers():  # if no other process can launch the job, there is nothing to cancel
            return job.key in self._created - self._submitted
        try:
            if api_server.is_launching(job.name):
                return False
            left = [record for record in api_server.jobs_named(job.name) if api_server.status(record) not in FINAL]
            if numbers := [record.job_id for record in left if record.job_id is not None]:
                api_server.cancel(numbers)
        except UNANSWERED:
            return False
        return True


def _make_order(template: TaskTemplate, inputs: LiteralMap | None, metadata: TaskExecutionMetadata | None) -> Order:
    """Return the job's order. The placement comes from the input `options`. On a cluster, where all executions of a
    version share a template, the execution comes from the metadata, and the storage is that of its pods."""
    context, order = FlyteContextManager.current_context(), dict(template.custom)
    given = inputs.literals.get(OPTIONS) if inputs else None
    options: Options | None = TypeEngine.to_python_value(context, given, Options) if given else None
    placement = (options and options.placement) or Placement.model_validate(order.pop("placement", {}))
    environment = dict(template.container.env or {})
    if metadata is not None:
        asks = metadata.task_execution_id.node_execution_id.execution_id
        order["execution"] = execution_name(asks.project, asks.domain, asks.name)
        environment |= metadata.environment_variables or {}  # the execution's variables, from `pyflyte run --env`
        order["storage"] = environment.get(STORAGE) or os.environ.get(STORAGE) or _beside_raw_data(template)
    if placement.storage:
        order["storage"] = storage_of(placement.storage)
    return Order(**(order | {"placement": placement.model_dump(mode="json"), "environment": environment}))


def _beside_raw_data(template: TaskTemplate) -> str:
    """Return the storage of an execution's pods, whose raw data is in PREFIX/<two letters>/<pod>."""
    command = template.container.args
    raw = str(command[command.index("--raw-output-data-prefix") + 1])
    return raw.rstrip("/").rsplit("/", 2)[0] + "/baton"


def refuse_absent(image: str) -> None:
    """Raise UserError if an image is not in its registry, since SkyPilot would repeatedly rent machines for it."""
    if image and absent([image.removeprefix("docker:")]):
        fix = f"push it (`{command('baton images REGISTRY')}` for Baton's own), or correct placement.image"
        raise UserError(f"{image} is not in its registry: {fix}")


def _job_name(template: TaskTemplate, inputs: LiteralMap | None) -> str:
    """Return a name derived from the task, its version, and its inputs as in Flyte's cache key."""
    task = template.id.name.removeprefix("baton.")
    identity = blake2b(f"{task}\0{template.metadata.discovery_version}".encode(), digest_size=6)
    for name, literal in sorted((inputs.literals if inputs else {}).items()):
        if name == OPTIONS:
            continue
        identity.update(f"{name}\0".encode())
        content = literal.to_flyte_idl().SerializeToString(deterministic=True)
        identity.update(literal.hash.encode() if literal.hash else content)
    stage = template.id.name.rpartition(".")[2].replace("_", "-")
    return f"baton-{stage}-{identity.hexdigest()}"


def _copy_outputs(resource: Resource, source: str, destination: str) -> Resource:
    """Copy a job's outputs and deck from `source` to this attempt's `destination`. The resource itself gets no outputs,
    since Flyte looks for a deck only beside outputs in storage."""
    access = FlyteContextManager.current_context().file_access
    with TemporaryDirectory() as folder:
        outputs, deck = Path(folder) / "outputs.pb", Path(folder) / "deck.html"
        if not access.exists(f"{source}/{outputs.name}"):
            resource.phase = TaskExecution.RETRYABLE_FAILED
            resource.message = f"{resource.message}, and there is no {source}/{outputs.name}"
            return resource
        if source != destination:
            access.get_data(f"{source}/{outputs.name}", str(outputs))
            access.put_data(str(outputs), f"{destination}/{outputs.name}")
        if access.exists(f"{source}/{deck.name}"):
            access.get_data(f"{source}/{deck.name}", str(deck))
            text, note = deck.read_text(), f"<p>{escape(resource.message or '')}</p>"
            deck.write_text(text if note in text else text.replace("<body>", f"<body>{note}", 1))
            access.put_data(str(deck), f"{destination}/{deck.name}", ContentType="text/html", content_type="text/html")
    return resource


async def _ended(query: Future[Any]) -> None:
    """Wait a limited time until a query has ended. asyncio does not report its exception, which the caller handles."""
    waited = asyncio.wrap_future(query)
    waited.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
    await asyncio.wait([waited], timeout=ANSWER_S)


def _failure_reason(record: ManagedJobRecord) -> tuple[str, bool, bool]:
    """Return a failed job's error, whether the task marks it as recoverable, and whether it is an error of the task and
    not of SkyPilot."""
    access, uri = FlyteContextManager.current_context().file_access, f"{api_server.output_prefix(record)}/error.pb"
    if not access.exists(uri):
        return redact_text(record.failure_reason or ""), False, False
    with TemporaryDirectory() as folder:
        path = f"{folder}/error.pb"
        access.get_data(uri, path)
        error = load_proto_from_file(errors_pb2.ErrorDocument, path).error
    _, is_trace, text = error.message.rpartition("Message:\n\n")  # flytekit's format if our code could not be loaded
    text = textwrap.dedent(text).partition(": ")[2] if is_trace else text
    return redact_text(text), error.kind == errors_pb2.ContainerError.RECOVERABLE, True


def _describe(error: BaseException) -> str:
    return redact_text(f"{type(error).__name__}: {error}" if not isinstance(error, UserError) else str(error))


ConnectorRegistry.register(SkyPilotConnector())
