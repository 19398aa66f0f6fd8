"""Run a Flyte task on the machines of its placement.

On a Flyte cluster the placed task has another type, which the connector service runs; on a laptop the same connector
runs in this process.
"""

import asyncio
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from flyteidl.core.execution_pb2 import TaskExecution
from flytekit import FlyteContextManager, ImageSpec
from flytekit.configuration import FastSerializationSettings, ImageConfig, SerializationSettings
from flytekit.constants import CopyFileDetection
from flytekit.core.data_persistence import FileAccessProvider
from flytekit.extend.backend.base_connector import Resource
from flytekit.extend.backend.utils import is_terminal_phase
from flytekit.tools.fast_registration import FastPackageOptions, fast_package
from flytekit.tools.ignore import StandardIgnore

from baton import HERE, SEARCH_PATH
from baton.infra.errors import UserError
from baton.infra.flyte.hooks import job_signal_handlers, quiet_s3
from baton.infra.placement.config import MACHINE_FAULT, NO_IMAGE, UNUSED, Placement
from baton.infra.placement.machine import ending_together, may_restart
from baton.infra.placement.mirror import Mirror, sending
from baton.infra.pod import this_pod
from baton.infra.process.launch import EngineFailed
from baton.infra.progress import ProgressBar, say, say_end
from baton.infra.storage.buckets import storage_of
from baton.infra.tracking.code import PROJECT, code_version
from baton.infra.tracking.execution import current_execution, execution_id, wake
from baton.infra.tracking.remote_run import JOB, add_placement, end_record, is_recorded, progress_of
from baton.infra.tracking.spool import FAILED, KILLED, execution_folder

T = TypeVar("T")

POLL_S = 4.0  # interval of queries to SkyPilot's API server
DRAW_S = 0.5  # interval of updates of the progress bar
CANCEL_S = 60.0  # time after Ctrl-C, long enough for a launch in progress to end


class PlacementFailed(UserError):
    """Raised if a placed stage failed on its machine."""


def is_job() -> bool:
    """Return whether this process runs on the machine of a placed task's job."""
    return JOB in os.environ


def in_job(work: Callable[[], T]) -> T:
    """Do a job's work on its machine. If a restart may help, exit with a code that makes SkyPilot recover the job."""
    try:
        with sending(), ending_together():
            return work()
    except EngineFailed as error:
        if not error.curable or not may_restart():
            raise
        say(f"{error}\nA restart may help: SkyPilot will restart the job.")
        raise SystemExit(MACHINE_FAULT) from error


def job_settings() -> dict[str, Any]:
    """Return the custom settings of a job's template, which all placements of a task share. The connector gets the
    placement itself from the input `options`."""
    return {"storage": storage_of(None), "execution": execution_id(), "code": code_version()}


def image_of(image: ImageSpec, settings: SerializationSettings, is_placed: bool) -> str | None:
    """Return the image if it is not the one that flytekit finds. For a placed task it may be NO_IMAGE, if the machines
    provide the environment. If the run was registered without an image (UNUSED), it is refused only where a pod
    requests it."""
    found = settings.image_config.find_image(image.id)
    is_left_out = found is not None and found.full == UNUSED
    if is_placed and not image.registry and (found is None or is_left_out):
        return NO_IMAGE
    if is_left_out and this_pod():
        return str(image.image_name())  # raises NoImage
    return None


@contextmanager
def jobs_from_here(placement: Placement) -> Iterator[None]:
    """Let jobs in the body get their inputs and this project's code through the placement's storage, and let SIGTERM
    cancel them, like Ctrl-C."""
    import baton.infra.flyte.connector  # noqa: F401 - registers itself; imports SkyPilot

    quiet_s3()
    storage = storage_of(placement.storage)
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
        yield


def _as_in_a_clone(folder: Path) -> Path:
    """Return the folder of this project's code, of an installed package a copy with the folders of a clone."""
    if SEARCH_PATH:
        return PROJECT
    copy = folder / "code"
    for name in ("images", "infra", "tasks", "workflows"):
        shutil.copytree(HERE / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    (copy / HERE.name).mkdir()
    shutil.copy(HERE / "__init__.py", copy / HERE.name)
    return copy


def is_of_this_execution(task: str, job: Any) -> bool:
    """Return whether a job was started by this execution, and not by an earlier one."""
    return is_recorded(current_execution(task), job.name)


def cancel(connector: Any, job: Any) -> None:
    """Cancel a job after Ctrl-C."""
    say(f"cancelling job {job.name}; the same command continues from its newest checkpoint")
    connector.wait_for_cancellation(job, CANCEL_S)
    end_record(execution_folder(execution_id()), job.name, "cancelled", KILLED)


async def follow(connector: Any, job: Any, title: str, placement: Placement | None) -> Resource:
    """Poll until a job has ended, and show its state and the engine's progress. Raises PlacementFailed."""
    from baton.infra.placement.record import summary  # imports SkyPilot

    reported, polled = "", -POLL_S
    bar, execution, succeeded, end_summary = None, current_execution(title), False, ""
    connector.logs_states = False
    storage = storage_of(placement.storage if placement else None)
    try:
        with Mirror(storage, execution, job.name).following() as mirror:
            while True:
                if time.monotonic() - polled >= POLL_S:
                    polled = time.monotonic()
                    resource: Resource = await connector.get(job)
                    mirror.where = resource.custom_info or {}
                    is_failure = is_terminal_phase(resource.phase) and resource.phase != TaskExecution.SUCCEEDED
                    if resource.message != reported and not is_failure:  # a failure's message is the error's text
                        reported = resource.message
                        say(f"{title}: {reported}")
                    if add_placement(execution, job.name, mirror.where):
                        wake()
                    if is_terminal_phase(resource.phase):
                        break
                if bar is None and (progress := progress_of(execution, job.name)):
                    bar = ProgressBar(title, progress.parent)
                elif bar is not None:
                    bar.update()
                await asyncio.sleep(DRAW_S)
        end_summary = summary(mirror.where)
        succeeded = resource.phase == TaskExecution.SUCCEEDED
    finally:
        if bar is not None:
            bar.close(succeeded, end_summary)
        elif end_summary:
            say_end(title, succeeded, end_summary)
    if not succeeded:
        end_record(execution, job.name, resource.message.partition("\n")[0], FAILED)
        raise PlacementFailed(f"{title}: {resource.message}")
    return resource


class _NoHistory(StandardIgnore):
    """Ignores .git, in addition to what git ignores."""

    def __init__(self, root: str) -> None:
        super().__init__(root, [".git", ".git/*"])


def _code(access: FileAccessProvider, storage: str) -> str:
    """Upload this project's files, named by their digest, as Flyte's fast registration does, and return the address."""
    with TemporaryDirectory() as folder:
        options = FastPackageOptions([_NoHistory], copy_style=CopyFileDetection.ALL)
        archive = Path(fast_package(_as_in_a_clone(Path(folder)), folder, options=options))
        address = f"{storage}/code/{archive.name}"
        if not access.exists(address):
            access.put_data(str(archive), address)
    return address


@contextmanager
def _signals() -> Iterator[None]:
    """Let SIGTERM cancel the job, like Ctrl-C."""
    before = signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGINT))
    try:
        with job_signal_handlers():
            yield
    finally:
        signal.signal(signal.SIGTERM, before)
