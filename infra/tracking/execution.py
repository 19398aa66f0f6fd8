"""An execution: one run of a workflow, the parent of its stages' runs.

    begin_execution("pretrain_to_rl", recipe)
    ...                                        # stages, each in record.tracked(...)
    end_execution("FINISHED", metrics={"sums.right": 0.61})

A stage that runs alone gets its own execution, opened when it starts and closed when the process ends. BATON_EXECUTION
passes the execution's id to other processes.
"""

import atexit
import os
import secrets
import shlex
import signal
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from baton.infra.commands import command
from baton.infra.paths import baton_home
from baton.infra.pod import this_pod
from baton.infra.process.launch import grace_left_s
from baton.infra.progress import say
from baton.infra.storage.disk_errors import disk_errors_named
from baton.infra.tracking.annotations import annotate, given
from baton.infra.tracking.code import code_version
from baton.infra.tracking.machine import links
from baton.infra.tracking.outage import recoverable, wait_until_reachable
from baton.infra.tracking.redact import redact, redact_command, redact_spec, redact_text
from baton.infra.tracking.remote_run import remote_place
from baton.infra.tracking.repository import repository
from baton.infra.tracking.sinks.process import DeliveryProcess
from baton.infra.tracking.spool import (
    FAILED,
    FINISHED,
    KILLED,
    RUNNING,
    Execution,
    execution_folder,
    hold,
    is_only_holder,
    read_execution,
    read_stage,
    reopen,
    stage_folders,
    write_execution,
    write_used,
)
from baton.infra.tracking.sqlite_file import store_file
from baton.infra.tracking.store import shown_uri, tracking_uri
from baton.infra.tracking.uploader import Uploader
from baton.infra.tracking.user import user

# How long an exiting process may wait for the store: a tenth of its runtime, within these bounds
SHORTEST_WAIT_S, LONGEST_WAIT_S = 1.5, 5.0
POD_WAIT_S = 240.0  # in a pod, whose disk is lost with it
MARGIN_S = 1.0  # left before SIGKILL in a pod, for other work at the end
SINK_WAIT_S = 15.0  # for the trackers beside MLflow, whose client libraries take some seconds to end
LOCAL_STALL_S = 60.0  # a local file is waited for as long as a record was stored within this time


@dataclass(frozen=True)
class _Open:
    """The execution that this process works on."""

    folder: Path
    lock: int  # file descriptor
    uploader: Uploader
    named_here: bool  # this process chose the id
    opened: float  # seconds since the epoch
    deliveries: list[DeliveryProcess]  # to the trackers beside MLflow


_open: _Open | None = None
_last = False  # this pod is the execution's last
_opening = threading.Lock()


def execution_id() -> str:
    """The id of this process's execution: BATON_EXECUTION, in a pod Flyte's id, or a new id, which is then set in
    BATON_EXECUTION. New ids sort by time (UTC)."""
    id = os.environ.get("BATON_EXECUTION")
    if not id and (pod := this_pod()):
        return pod.execution_name
    if not id:
        now = time.time()
        id = time.strftime("%Y%m%d-%H%M%S", time.gmtime(now)) + f"-{int(now % 1 * 1000):03}-{secrets.token_hex(2)}"
        os.environ["BATON_EXECUTION"] = id
    return id


def begin_execution(
    name: str,
    recipe: dict[str, Any],
    settings: dict[str, Any] | None = None,
    plan: Sequence[str] = (),
    whole: dict[str, Any] | None = None,
    also: Sequence[str] = (),
) -> str:
    """Open an execution and start tracking it; returns its id. `settings` are the recipe's fields that differ from
    their defaults, `plan` the titles of the stages that will run, `whole` the recipe with the source of its functions,
    for running it again anywhere, `also` the names of the trackers beside MLflow. Raises DiskRefused, and
    TrackingUnreachable if the store is unreachable (in a pod FlyteRecoverableException, after retries)."""
    with recoverable():
        wait_until_reachable()
    close_execution()
    with disk_errors_named():
        current_execution(name, recipe, settings, plan, whole, also)
    return execution_id()


def end_execution(status: str = FINISHED, metrics: dict[str, float] | None = None, error: str | None = None) -> bool:
    """Close the execution with its final status (FINISHED, FAILED, KILLED), summary metrics and what went wrong outside
    of its stages, and wait briefly for the upload. Returns whether MLflow has everything; if not, the rest stays in the
    spool."""
    folder = current_execution("execution")
    known = read_execution(folder)
    ended = replace(known, status=status, ended=time.time(), metrics=metrics or {}, error=error and redact_text(error))
    write_execution(folder, ended)
    return close_execution()


def mark_last() -> None:
    """Mark this process as the execution's last, so that the execution ends with this process's success. On a Flyte
    cluster no other pod could know."""
    global _last  # noqa: PLW0603 - of this process
    _last = True
    if this_pod():
        current_execution("execution")  # not open yet in a pod without a stage


def current_execution(
    name: str,
    recipe: dict[str, Any] | None = None,
    settings: dict[str, Any] | None = None,
    plan: Sequence[str] = (),
    whole: dict[str, Any] | None = None,
    also: Sequence[str] = (),
) -> Path:
    """The folder of this process's execution, which is opened as `name` if necessary."""
    global _open  # noqa: PLW0603 - a process works on one execution
    with _opening:
        folder = execution_folder(execution_id())
        if _open is not None and _open.folder == folder:
            return folder
        named_here = not (folder / "execution.json").exists()
        note, tags = given()
        lock = hold(folder)
        if named_here:
            execution = Execution(
                folder.name,
                name,
                redact(recipe or {}),
                code_version(),
                shlex.join(redact_command(sys.argv)),
                time.time(),
                links=links(),
                joined=recipe is None and bool(this_pod() or remote_place()),
                flyte="/".join((pod.project, pod.domain, pod.execution)) if (pod := this_pod()) else "",
                settings=redact(settings or {}),
                plan=list(plan),
                whole=redact_spec(whole or {}),
                repository=repository(),
                user=user(),
                also=list(also),
            )
        else:  # begun by another process, or resumed
            execution = replace(read_execution(folder), status=RUNNING, ended=None, error=None)
        reopen(folder)
        if named_here and (note or tags):
            annotate(folder, note or None, tags)
        write_execution(folder, execution)
        # a machine of a placed stage and a pod leave it to the one that started them
        beside = [] if remote_place() or this_pod() else execution.also
        deliveries = [DeliveryProcess(tracker, folder) for tracker in beside]
        _open = _Open(folder, lock, Uploader(folder), named_here, time.time(), deliveries)
        return folder


def note_used(digests: Iterable[str]) -> None:
    """Note artifacts that this execution relies on, so that `baton gc` keeps their files while it runs."""
    if _open is not None:
        write_used(_open.folder, digests)


def wake() -> None:
    """Upload soon: there is something new in the spool."""
    if _open is not None:
        _open.uploader.wake()


def flush(timeout_s: float = LONGEST_WAIT_S) -> bool:
    """Wait briefly until everything spooled now is uploaded. Returns whether it is."""
    return _open is None or _open.uploader.flush(timeout_s)


def close_execution() -> bool:
    """Leave the execution; returns whether MLflow has all of it."""
    global _open
    if _open is None:
        return True
    opened, _open = _open, None
    status = FINISHED
    try:
        record = read_execution(opened.folder)
        status = _status_of_stages(opened.folder) if record.status == RUNNING else record.status
        is_over = (_last or status != FINISHED) if record.flyte else not record.joined
        if is_only_holder(opened.lock) and record.status == RUNNING and is_over:
            write_execution(opened.folder, replace(record, status=status, ended=time.time()))
    except OSError as error:  # the disk is full: the next run will close this one
        say(f"tracking: {opened.folder}: the run's final status could not be written ({error})")
    os.close(opened.lock)
    for delivery in opened.deliveries:
        delivery.end()
    patience = min(LONGEST_WAIT_S, max(SHORTEST_WAIT_S, (time.time() - opened.opened) / 10))
    if this_pod():
        left = grace_left_s()
        patience = (
            max(SHORTEST_WAIT_S, left - MARGIN_S) if left is not None else patience if status == KILLED else POD_WAIT_S
        )
    stall = LOCAL_STALL_S if store_file(tracking_uri()) else 0
    delivered = opened.uploader.finish(patience, stall, persist=bool(this_pod()))
    opened.uploader.stop()
    _finish(opened.deliveries)
    if not delivered and this_pod():
        lost = f"records that {shown_uri()} did not accept are lost with this pod's disk"
        say(f"tracking: {lost}. The stage's artifact is in storage: the next run of the recipe finds and records it")
    elif not delivered:
        where = baton_home() / "executions"
        sync = command("baton tracking sync")
        say(f"tracking: some records remain in {where}; the next run or `{sync}` uploads them")
    if opened.named_here:
        os.environ.pop("BATON_EXECUTION", None)
    return delivered


def _finish(deliveries: list[DeliveryProcess]) -> None:
    """Wait for the trackers beside MLflow, all of them together for SINK_WAIT_S."""
    deadline = time.monotonic() + SINK_WAIT_S
    for delivery in deliveries:
        delivery.finish(max(0.0, deadline - time.monotonic()))


def _status_of_stages(folder: Path) -> str:
    """The status of an execution without an explicit end: the worst of its stages."""
    statuses = {read_stage(stage).status for stage in stage_folders(folder)}
    return next((status for status in (KILLED, FAILED) if status in statuses), FINISHED)


@atexit.register
def _at_exit() -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        close_execution()
    except KeyboardInterrupt:
        pass  # interrupted again: don't wait
    finally:
        signal.signal(signal.SIGINT, before)
