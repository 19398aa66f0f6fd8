"""A Flyte task that runs here, or where its placement says.

On a Flyte cluster the placed task has another type, which the connector service runs; on a laptop the same connector
runs in this process.
"""

import asyncio
import copy
import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

from flyteidl.core.execution_pb2 import TaskExecution
from flytekit import FlyteContextManager, ImageSpec
from flytekit.configuration import FastSerializationSettings, ImageConfig, SerializationSettings
from flytekit.constants import CopyFileDetection
from flytekit.core.data_persistence import FileAccessProvider
from flytekit.extend.backend.base_connector import AsyncConnectorExecutorMixin, Resource
from flytekit.extend.backend.utils import is_terminal_phase
from flytekit.models.literals import LiteralMap
from flytekit.tools.fast_registration import FastPackageOptions, fast_package
from flytekit.tools.ignore import StandardIgnore

from infra.errors import UserError
from infra.flyte.hooks import job_signal_handlers, quiet_s3, with_task_type
from infra.placement.config import MACHINE_FAULT, NO_IMAGE, TASK_TYPE, UNUSED, Placement
from infra.placement.machine import ending_together, may_restart
from infra.placement.mirror import Mirror, sending
from infra.pod import this_pod
from infra.process.launch import EngineFailed
from infra.progress import ProgressBar, say, say_end
from infra.storage.buckets import storage_of
from infra.tracking.code import PROJECT, code_version
from infra.tracking.execution import current_execution, execution_id, wake
from infra.tracking.remote_run import JOB, add_placement, end_record, is_recorded, progress_of
from infra.tracking.spool import FAILED, KILLED, execution_folder

POLL_S = 4.0  # interval of queries to SkyPilot's API server
DRAW_S = 0.5  # interval of updates of the progress bar
CANCEL_S = 60.0  # after Ctrl-C: long enough for a launch in progress to end


class PlacementFailed(UserError):
    """A placed stage failed on its machine."""


class Placeable(AsyncConnectorExecutorMixin):
    """A mixin before PythonFunctionTask. The input `how` (JSON) may have a `placement`.

    Overrides internals of flytekit 1.16's AsyncConnectorExecutorMixin: `_get`, which shows nothing while a job runs,
    and `connector_signal_handler`, which does not wait for the cancellation."""

    placement: Placement | None = None  # set on the copy that uses a connector in this process

    def __call__(self, **inputs: Any) -> Any:
        """Select the task type that a cluster routes by."""
        task = self if placement_of(inputs) is None else self.placed
        return super(Placeable, task).__call__(**inputs)

    @cached_property
    def placed(self) -> Self:
        """This task with a connector's type, and the same cache key."""
        return with_task_type(copy.copy(self), TASK_TYPE)

    def execute(self, **inputs: Any) -> Any:
        placement = placement_of(inputs)
        if JOB in os.environ:
            return self._in_job(**inputs)
        if placement is None:
            return super(AsyncConnectorExecutorMixin, self).execute(**inputs)
        task = copy.copy(self.placed)
        task.placement = placement
        return task._elsewhere(**self.sent(placement, inputs))

    def sent(self, placement: Placement, inputs: dict[str, Any]) -> dict[str, Any]:
        """The inputs, with their files uploaded to where the job will find them."""
        return inputs

    def received(self, outputs: LiteralMap) -> None:
        """Called with the outputs of a job that this execution started."""

    def get_custom(self, settings: SerializationSettings) -> dict[str, Any]:
        """What all placements of a task share; the connector gets the placement itself from `how`."""
        if self.task_type != TASK_TYPE:
            return {}
        return {"storage": storage_of(None), "execution": execution_id(), "code": code_version()}

    def get_image(self, settings: SerializationSettings) -> str:
        """For a placed task it may be NO_IMAGE: then the machines provide the environment. An image that the run was
        registered without (UNUSED) is refused only where a pod asks for it."""
        image: ImageSpec = self.container_image
        found = settings.image_config.find_image(image.id)
        is_left_out = found is not None and found.full == UNUSED
        if self.task_type == TASK_TYPE and not image.registry and (found is None or is_left_out):
            return NO_IMAGE
        if is_left_out and this_pod():
            return str(image.image_name())  # raises NoImage
        return str(super().get_image(settings))

    def _in_job(self, **inputs: Any) -> Any:
        """Run on the job's machine. If a restart may help, exit with a code that makes SkyPilot recover the job."""
        try:
            with sending(), ending_together():
                return super(AsyncConnectorExecutorMixin, self).execute(**inputs)
        except EngineFailed as error:
            if not error.curable or not may_restart():
                raise
            say(f"{error}\nA restart may help: SkyPilot will restart the job.")
            raise SystemExit(MACHINE_FAULT) from error

    def _elsewhere(self, **inputs: Any) -> Any:
        """Run through the connector in this process; returns when the job has ended."""
        import infra.flyte.connector  # noqa: F401 - registers itself; imports SkyPilot

        assert self.placement is not None
        quiet_s3()
        storage = storage_of(self.placement.storage)
        context = FlyteContextManager.current_context()
        access = FileAccessProvider(context.file_access.local_sandbox_dir, f"{storage}/flyte")
        context = context.with_file_access(access).build()
        settings = SerializationSettings(
            ImageConfig(),
            fast_serialization_settings=FastSerializationSettings(
                enabled=True, destination_dir=".", distribution_location=_code(access, storage)
            ),
        )
        with FlyteContextManager.with_context(context.with_serialization_settings(settings)), _signals():
            outputs: LiteralMap = super().execute(**inputs)
        if is_recorded(current_execution(self.name), self.resource_meta.name):
            self.received(outputs)
        return outputs

    def connector_signal_handler(self, resource_meta: Any, *signal_and_frame: Any) -> None:
        """Ctrl-C."""
        say(f"cancelling job {resource_meta.name}; the same command continues from its newest checkpoint")
        self._connector.wait_for_cancellation(resource_meta, CANCEL_S)
        end_record(execution_folder(execution_id()), resource_meta.name, "cancelled", KILLED)
        self._clean_up_task = True

    async def _get(self, resource_meta: Any) -> Resource:
        """Poll until the job has ended; show its state and the engine's progress. Raises PlacementFailed."""
        from infra.placement.record import summary  # imports SkyPilot

        title, reported, polled = self.name.rpartition(".")[2], "", -POLL_S
        bar, execution, succeeded, last_words = None, current_execution(title), False, ""
        self._connector.logs_states = False
        storage = storage_of(self.placement.storage if self.placement else None)
        try:
            with Mirror(storage, execution, resource_meta.name).following() as mirror:
                while True:
                    if time.monotonic() - polled >= POLL_S:
                        polled = time.monotonic()
                        resource = await self._connector.get(resource_meta)
                        mirror.where = resource.custom_info or {}
                        is_failure = is_terminal_phase(resource.phase) and resource.phase != TaskExecution.SUCCEEDED
                        if resource.message != reported and not is_failure:  # that is the error's text
                            reported = resource.message
                            say(f"{title}: {reported}")
                        if add_placement(execution, resource_meta.name, mirror.where):
                            wake()
                        if is_terminal_phase(resource.phase):
                            break
                    if bar is None and (progress := progress_of(execution, resource_meta.name)):
                        bar = ProgressBar(title, progress.parent)
                    elif bar is not None:
                        bar.update()
                    await asyncio.sleep(DRAW_S)
            last_words = summary(mirror.where)
            succeeded = resource.phase == TaskExecution.SUCCEEDED
        finally:
            if bar is not None:
                bar.close(succeeded, last_words)
            elif last_words:
                say_end(title, succeeded, last_words)
        if not succeeded:
            end_record(execution, resource_meta.name, resource.message.partition("\n")[0], FAILED)
            raise PlacementFailed(f"{title}: {resource.message}")
        return resource


def placement_of(inputs: dict[str, Any]) -> Placement | None:
    """The placement of one call of a task."""
    words = json.loads(inputs["how"]).get("placement")
    return words and Placement.model_validate(words)


class _NoHistory(StandardIgnore):
    """Ignores .git, in addition to what git ignores."""

    def __init__(self, root: str) -> None:
        super().__init__(root, [".git", ".git/*"])


def _code(access: FileAccessProvider, storage: str) -> str:
    """Upload this project's files, named by their digest, as Flyte's fast registration does; returns the address."""
    with TemporaryDirectory() as folder:
        options = FastPackageOptions([_NoHistory], copy_style=CopyFileDetection.ALL)
        archive = Path(fast_package(PROJECT, folder, options=options))
        address = f"{storage}/code/{archive.name}"
        if not access.exists(address):
            access.put_data(str(archive), address)
    return address


@contextmanager
def _signals() -> Iterator[None]:
    """SIGTERM cancels the job, like Ctrl-C."""
    before = signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGINT))
    try:
        with job_signal_handlers():
            yield
    finally:
        signal.signal(signal.SIGTERM, before)
