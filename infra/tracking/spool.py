"""The spool: one folder an execution, one folder a stage in it, plain JSON. Nothing here knows MLflow."""

import fcntl
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

from infra.durable import make_folder, write_json
from infra.errors import Stopped
from infra.home import baton_home
from infra.pod import this_pod

LONGEST_NAME = 80  # of a stage's folder
R = TypeVar("R", "Execution", "StageRun")

RUNNING, FINISHED, FAILED, KILLED = "RUNNING", "FINISHED", "FAILED", "KILLED"  # MLflow's own words


class RecordDamaged(Stopped):
    """A record in the spool cannot be read."""


@dataclass(frozen=True)
class Execution:
    """One run of a workflow (or of a single stage)."""

    id: str
    name: str
    recipe: dict[str, Any]
    code: dict[str, str]  # commit, dirty, diff: see code.py
    command: str
    started: float  # seconds since the epoch
    ended: float | None = None
    status: str = RUNNING
    metrics: dict[str, float] = field(default_factory=dict)  # its summary
    links: dict[str, str] = field(default_factory=dict)  # name -> address of a page about it
    joined: bool = False  # this process works for an execution that another one, elsewhere, has begun
    flyte: str = ""  # project/domain/id of the execution on a Flyte cluster that it is


@dataclass(frozen=True)
class StageRun:
    """One stage of an execution."""

    title: str
    params: dict[str, str]
    inputs: dict[str, str]  # input name -> digest
    job_dir: str | None
    code: dict[str, str]
    versions: dict[str, str]
    started: float
    ended: float | None = None
    status: str = RUNNING
    error: str | None = None
    cached: bool = False
    output: dict[str, Any] | None = None  # kind, digest, facts
    command: str = ""  # that makes it again from its job directory
    machine: dict[str, str] = field(default_factory=dict)  # see machine.py
    placed: dict[str, Any] = field(default_factory=dict)  # where it ran, if not here: see placed.py
    pod: str = ""  # on a Flyte cluster: each attempt at a node has one


def executions() -> list[Path]:
    """The folders of all executions on this machine, oldest first."""
    return sorted(path.parent for path in _root().glob("*/execution.json"))


def execution_folder(execution_id: str) -> Path:
    return _root() / execution_id


def stage_folder(execution: Path, title: str, job_dir: str | None) -> Path:
    """The folder for a stage: the one of its earlier attempt at the same job, or a new one. Pods do not see each
    other's folders: there the job's name is in it."""
    slug = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")[:LONGEST_NAME] or "stage"
    if job_dir and this_pod():
        slug += f"-{Path(job_dir).name[-8:]}"
    for number in count(1):
        folder = execution / (slug if number == 1 else f"{slug}-{number}")
        if not (folder / "run.json").exists() or read_stage(folder).job_dir == job_dir:
            break
    return folder


def stage_folders(execution: Path) -> list[Path]:
    return sorted(path.parent for path in execution.glob("*/run.json"))


def read_execution(folder: Path) -> Execution:
    return _read(Execution, folder / "execution.json")


def write_execution(folder: Path, execution: Execution) -> None:
    _write(folder / "execution.json", execution)


def read_stage(folder: Path) -> StageRun:
    return _read(StageRun, folder / "run.json")


def write_stage(folder: Path, run: StageRun) -> None:
    _write(folder / "run.json", run)


def _read(kind: type[R], path: Path) -> R:
    try:
        return kind(**json.loads(path.read_text()))
    except (ValueError, TypeError) as error:
        raise RecordDamaged(f"{path}: not a record that can be read ({error}); move {path.parent} away") from error


def _write(path: Path, record: Execution | StageRun) -> None:
    """Returns when it is on the disk: a record may say that something has ended."""
    make_folder(path.parent)
    write_json(path, asdict(record))


def read_note(folder: Path) -> dict[str, Any]:
    """What of a record is in MLflow (pushed.json). Empty: not known, because nothing is, or because a power cut took
    the note, and then it is pushed again, which changes nothing."""
    try:
        return dict(json.loads((folder / "pushed.json").read_text()))
    except (FileNotFoundError, ValueError):
        return {}


def write_note(folder: Path, note: dict[str, Any]) -> None:
    """Not synced: there are several a second, and one that is lost does no harm."""
    partial = folder / "pushed.json.partial"
    partial.write_text(json.dumps(note))
    partial.replace(folder / "pushed.json")


def forget_notes(execution: Path) -> None:
    """Nothing of an execution is known to be in MLflow."""
    for note in (execution / "delivered", execution / "pushed.json", *execution.glob("*/pushed.json")):
        note.unlink(missing_ok=True)


def has_pushed_to(store: str) -> bool:
    """Whether anything of this machine's executions was pushed to a store, by the beginning of its digest."""
    return any(read_note(path.parent).get("store", "").startswith(store) for path in _root().glob("*/pushed.json"))


def hold(execution: Path) -> int:
    """Say that this process is at work in an execution, for as long as it lives or until the returned
    file descriptor is closed. The kernel lets go for a process that is killed."""
    make_folder(execution)
    descriptor = os.open(execution / "alive.lock", os.O_RDWR | os.O_CREAT, 0o644)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    return descriptor


def alone(descriptor: int) -> bool:
    """Whether the holder of this descriptor is the only process at work. Ask it last: the answer may
    cost the hold."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_alive(execution: Path) -> bool:
    """Whether any process is at work in an execution."""
    with (execution / "alive.lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def beat(execution: Path) -> None:
    """Leave a sign of life: the time of alive.lock."""
    with suppress(OSError):  # the disk is away: without signs of life the run goes on all the same
        os.utime(execution / "alive.lock")


def settle(execution: Path) -> bool:
    """Whether nobody is at work in an execution. Then what it left as running was killed, at its last sign of life,
    and is noted so."""
    if is_alive(execution):
        return False
    found = read_execution(execution)
    stages = {folder: read_stage(folder) for folder in stage_folders(execution)}
    seen = _modified(execution / "alive.lock", execution / "execution.json")
    for folder, run in stages.items():
        if run.status == RUNNING:
            job = Path(run.job_dir or execution)
            ended = max(seen, _modified(job / "metrics.jsonl", job / "progress.json", folder / "run.json"))
            error = run.error or "the process ended without a word (killed, or the machine went down)"
            stages[folder] = replace(run, status=KILLED, ended=ended, error=error)
            write_stage(folder, stages[folder])
    if found.status == RUNNING and not found.flyte:  # other pods may go on with it
        ended = max([seen, *(run.ended for run in stages.values() if run.ended)])
        write_execution(execution, replace(found, status=KILLED, ended=ended))
    return True


def _modified(*paths: Path) -> float:
    """When the newest of some files was changed."""
    return max((path.stat().st_mtime for path in paths if path.is_file()), default=0.0)


def is_delivered(execution: Path) -> bool:
    return (execution / "delivered").exists()


@contextmanager
def pushing(execution: Path) -> Iterator[bool]:
    """Whether this process may push an execution now: one at a time, or runs would be made twice."""
    with (execution / "push.lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True


def _root() -> Path:
    return baton_home() / "executions"
