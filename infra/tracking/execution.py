"""An execution: one run of a workflow, the parent of its stages' runs.

    begin_execution("pretrain_to_rl", recipe)
    ...                                        # stages, each in record.tracked(...)
    end_execution("FINISHED", metrics={"sums.right": 0.61})

A stage that is run alone has an execution of its own, opened when it starts and closed when the
process ends. BATON_EXECUTION carries the execution's id to other processes.
"""

import atexit
import os
import secrets
import shlex
import sys
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from infra.errors import disk_errors_named
from infra.home import baton_home
from infra.pod import this_pod
from infra.progress import say
from infra.tracking.away import patiently, recoverable
from infra.tracking.code import code_version, package_versions
from infra.tracking.flatten import flatten
from infra.tracking.forwarder import Forwarder
from infra.tracking.machine import links, machine
from infra.tracking.placed import own_place
from infra.tracking.redact import redact, redact_command
from infra.tracking.spool import (
    FAILED,
    FINISHED,
    KILLED,
    RUNNING,
    Execution,
    StageRun,
    alone,
    execution_folder,
    hold,
    read_execution,
    read_stage,
    stage_folder,
    stage_folders,
    write_execution,
    write_stage,
)
from infra.tracking.sqlite_file import store_file
from infra.tracking.store import check_reachable, tracking_uri

# How long the end of a process may wait for the store: a tenth of its own time, within these bounds
SHORTEST_WAIT_S, LONGEST_WAIT_S = 1.5, 5.0
POD_WAIT_S = 240.0  # in a pod, whose disk goes with it
LOCAL_STALL_S = 60.0  # a file of this machine is waited for as long as it takes a record in this time


@dataclass(frozen=True)
class _Open:
    """The execution that this process is at work in."""

    folder: Path
    lock: int  # file descriptor
    forwarder: Forwarder
    named_here: bool  # this process chose the id
    opened: float  # seconds since the epoch


_open: _Open | None = None
_last = False  # this pod is the execution's last
_opening = threading.Lock()


def execution_id() -> str:
    """The id of this process's execution: BATON_EXECUTION, or in a pod Flyte's, or a new one, put there. New ids sort
    by time (UTC)."""
    found = os.environ.get("BATON_EXECUTION")
    if not found and (pod := this_pod()):
        return pod.execution_name
    if not found:
        now = time.time()
        found = time.strftime("%Y%m%d-%H%M%S", time.gmtime(now)) + f"-{int(now % 1 * 1000):03}-{secrets.token_hex(2)}"
        os.environ["BATON_EXECUTION"] = found
    return found


def begin_execution(name: str, recipe: dict[str, Any]) -> str:
    """Open an execution and start to track it; returns its id. Raises TrackingUnreachable when the store cannot
    be had (in a pod FlyteRecoverableException, after a while), DiskRefused."""
    with recoverable():
        patiently(check_reachable)
    close_execution()
    with disk_errors_named():
        current_execution(name, recipe)
    return execution_id()


def end_execution(status: str = FINISHED, metrics: dict[str, float] | None = None) -> bool:
    """Close the execution with its final status (FINISHED, FAILED, KILLED) and summary, and wait a
    little for MLflow to have it all. Returns whether it has; if not, the spool keeps the rest."""
    folder = current_execution("execution")
    ended = replace(read_execution(folder), status=status, ended=time.time(), metrics=metrics or {})
    write_execution(folder, ended)
    return close_execution()


def is_last() -> None:
    """The execution is over when this process has ended well: on a Flyte cluster nobody else would say so, since each
    pod knows of itself alone."""
    global _last  # noqa: PLW0603 - of this process
    _last = True
    if this_pod():
        current_execution("execution")  # a pod without a stage of its own has not opened it


def note_cached(
    title: str,
    kind: str,
    digest: str,
    facts: dict[str, Any],
    *,
    spec: dict[str, Any] | None = None,
    inputs: dict[str, str] | None = None,
    job_dir: Path | None = None,
) -> None:
    """Record a stage whose artifact Flyte served from its cache; spec, inputs and job directory are those
    that made it."""
    folder = stage_folder(current_execution(title), title, None if job_dir is None else str(job_dir))
    if (folder / "run.json").exists() and read_stage(folder).status == FINISHED:
        return  # this execution made it itself, and was taken up again
    now = time.time()
    run = StageRun(
        title=title,
        params=flatten(redact(spec or {})),
        inputs=inputs or {},
        job_dir=None if job_dir is None else str(job_dir),
        code=code_version(),
        versions=package_versions(),
        started=now,
        ended=now,
        status=FINISHED,
        cached=True,
        output={"kind": kind, "digest": digest, "facts": redact(facts)},
        machine=machine(),
        pod=pod.name if (pod := this_pod()) else "",
    )
    write_stage(folder, run)


def current_execution(name: str, recipe: dict[str, Any] | None = None) -> Path:
    """The folder of this process's execution, opened as `name` if it is not open."""
    global _open  # noqa: PLW0603 - a process is at work in one execution
    with _opening:
        folder = execution_folder(execution_id())
        if _open is not None and _open.folder == folder:
            return folder
        named_here = not (folder / "execution.json").exists()
        lock = hold(folder)
        if named_here:
            found = Execution(
                folder.name,
                name,
                redact(recipe or {}),
                code_version(),
                shlex.join(redact_command(sys.argv)),
                time.time(),
                links=links(),
                joined=recipe is None and bool(this_pod() or own_place()),
                flyte="/".join((pod.project, pod.domain, pod.execution)) if (pod := this_pod()) else "",
            )
        else:  # another process began it, or it is taken up again
            found = replace(read_execution(folder), status=RUNNING, ended=None)
        (folder / "delivered").unlink(missing_ok=True)
        write_execution(folder, found)
        _open = _Open(folder, lock, Forwarder(folder), named_here, time.time())
        return folder


def wake() -> None:
    """There is something new in the spool: push it soon."""
    if _open is not None:
        _open.forwarder.wake()


def flush(timeout_s: float = LONGEST_WAIT_S) -> bool:
    """Wait, but not long, until MLflow has what is spooled now. Returns whether it has."""
    return _open is None or _open.forwarder.flush(timeout_s)


def close_execution() -> bool:
    """Leave the execution, closed or not; returns whether MLflow has all of it."""
    global _open
    if _open is None:
        return True
    left, _open = _open, None
    status = FINISHED
    try:
        found = read_execution(left.folder)
        status = _status_of_stages(left.folder) if found.status == RUNNING else found.status
        is_over = (_last or status != FINISHED) if found.flyte else not found.joined
        if alone(left.lock) and found.status == RUNNING and is_over:
            write_execution(left.folder, replace(found, status=status, ended=time.time()))
    except OSError as error:  # the disk is full: the next run will find that this one has ended
        say(f"tracking: {left.folder}: how the run ended could not be written ({error})")
    os.close(left.lock)
    patience = min(LONGEST_WAIT_S, max(SHORTEST_WAIT_S, (time.time() - left.opened) / 10))
    if this_pod() and status != KILLED:
        patience = POD_WAIT_S
    stall = LOCAL_STALL_S if store_file(tracking_uri()) else 0
    delivered = left.forwarder.finish(patience, stall, persist=bool(this_pod()))
    left.forwarder.stop()
    if not delivered:
        where = baton_home() / "executions"
        say(f"tracking: some records wait in {where}; the next run or `python -m infra.tracking sync` sends them")
    if left.named_here:
        os.environ.pop("BATON_EXECUTION", None)
    return delivered


def _status_of_stages(folder: Path) -> str:
    """What an execution came to that nobody ended: the worst of its stages."""
    statuses = {read_stage(stage).status for stage in stage_folders(folder)}
    return next((status for status in (KILLED, FAILED) if status in statuses), FINISHED)


@atexit.register
def _at_exit() -> None:
    try:
        close_execution()
    except KeyboardInterrupt:
        pass  # asked a second time not to wait
