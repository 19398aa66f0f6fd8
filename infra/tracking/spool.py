"""The spool: a folder per execution with a folder per stage, in plain JSON. Does not depend on MLflow."""

import fcntl
import json
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

from baton.infra.errors import UserError
from baton.infra.paths import baton_home, is_there, located
from baton.infra.pod import this_pod
from baton.infra.process.file_lock import try_lock
from baton.infra.storage.durable import make_folder, replacement, write_json
from baton.infra.tracking.annotations import read_annotations

LONGEST_NAME = 80  # characters in the name of a stage's folder
R = TypeVar("R", "Execution", "StageRun")

RUNNING, FINISHED, FAILED, KILLED = "RUNNING", "FINISHED", "FAILED", "KILLED"  # as in MLflow


class RecordDamaged(UserError):
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
    error: str | None = None  # an error outside of its stages
    metrics: dict[str, float] = field(default_factory=dict)  # summary
    links: dict[str, str] = field(default_factory=dict)  # name -> URL
    joined: bool = False  # begun by another process, on another machine
    flyte: str = ""  # project/domain/id, on a Flyte cluster
    settings: dict[str, Any] = field(default_factory=dict)  # the recipe's fields that differ from their defaults
    plan: list[str] = field(default_factory=list)  # titles of the stages that it will run
    whole: dict[str, Any] = field(default_factory=dict)  # the recipe with the source of its functions
    repository: dict[str, str] = field(default_factory=dict)  # the user's: see repository.py
    user: str = ""  # who started it: see annotations.py
    note: str | None = None  # None: it never had one
    tags: dict[str, str] = field(default_factory=dict)  # a removed tag is empty
    also: list[str] = field(default_factory=list)  # trackers beside MLflow: see sinks/


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
    output: dict[str, Any] | None = None  # kind, digest, facts, shown
    command: str = ""  # the command that reproduces it from its job directory
    machine: dict[str, str] = field(default_factory=dict)  # see machine.py
    placed: dict[str, Any] = field(default_factory=dict)  # where it ran, if on another machine: see remote_run.py
    pod: str = ""  # the pod of this attempt, on a Flyte cluster


def executions() -> list[Path]:
    """The folders of all executions on this machine, oldest first."""
    return sorted(path.parent for path in _root().glob("*/execution.json"))


def execution_folder(execution_id: str) -> Path:
    return _root() / execution_id


def stage_folder(execution: Path, title: str, job_dir: str | None) -> Path:
    """The folder of a stage: that of an earlier attempt at the same job, or a new one, even if titles differ only in
    characters other than letters and digits. In a pod, which can't see other pods' folders, its name includes the job.
    """
    slug = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")[:LONGEST_NAME] or "stage"
    if job_dir and this_pod():
        slug += f"-{Path(job_dir).name[-8:]}"
    for number in count(1):
        folder = execution / (slug if number == 1 else f"{slug}-{number}")
        if not (folder / "run.json").exists():
            break
        known = read_stage(folder)
        artifact = (known.output or {}).get("digest")  # in a pod it stands for the job of a stage that had none
        if known.title == title and (job_dir == known.job_dir or (job_dir and job_dir == artifact)):
            break
    return folder


def stage_folders(execution: Path) -> list[Path]:
    return sorted(path.parent for path in execution.glob("*/run.json"))


def read_execution(folder: Path) -> Execution:
    execution = _read(Execution, folder / "execution.json")
    try:
        note, tags = read_annotations(folder)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise RecordDamaged(f"{folder}: its annotations cannot be read ({error}); move {folder} aside") from error
    return replace(execution, note=note, tags=tags)


def write_execution(folder: Path, execution: Execution) -> None:
    """Write an execution but for its note and its tags (annotations.py)."""
    _write(folder / "execution.json", replace(execution, note=None, tags={}))


def read_stage(folder: Path) -> StageRun:
    return _read(StageRun, folder / "run.json")


def write_stage(folder: Path, run: StageRun) -> None:
    _write(folder / "run.json", run)


def _read(kind: type[R], path: Path) -> R:
    try:
        return kind(**json.loads(path.read_text()))
    except (ValueError, TypeError) as error:
        raise RecordDamaged(f"{path}: the record cannot be read ({error}); move {path.parent} aside") from error


def _write(path: Path, record: Execution | StageRun) -> None:
    """Write and sync a record."""
    make_folder(path.parent)
    write_json(path, asdict(record))


def read_used(execution: Path) -> set[str]:
    """The digests of artifacts that an execution has noted as used (used.json). Raises RecordDamaged."""
    try:
        return set(json.loads((execution / "used.json").read_text()))
    except FileNotFoundError:
        return set()
    except (ValueError, TypeError) as error:
        raise RecordDamaged(f"{execution}: used.json cannot be read ({error}); move the folder aside") from error


def write_used(execution: Path, digests: Iterable[str]) -> None:
    """Note artifacts as used by an execution, in addition to those noted before. The note is not synced: after a power
    cut nothing runs that could need it."""
    with replacement(execution / "used.json", synced=False) as partial:
        partial.write_text(json.dumps(sorted(read_used(execution).union(digests))))


def read_note(folder: Path) -> dict[str, Any]:
    """The note of what MLflow has of a record (pushed.json). Empty if MLflow has nothing, or if the note was lost in a
    power cut: uploading again changes nothing."""
    try:
        return dict(json.loads((folder / "pushed.json").read_text()))
    except (FileNotFoundError, ValueError):
        return {}


def write_note(folder: Path, note: dict[str, Any]) -> None:
    """Write a note without syncing it: notes are written several times a second, and losing one is harmless."""
    with replacement(folder / "pushed.json", synced=False) as partial:
        partial.write_text(json.dumps(note))


def forget_notes(execution: Path) -> None:
    """Delete the notes of an execution, so that all of it is uploaded again."""
    for note in (execution / "delivered", execution / "pushed.json", *execution.glob("*/pushed.json")):
        note.unlink(missing_ok=True)


def has_pushed_to(store: str) -> bool:
    """Return whether any of this machine's executions was uploaded to a store, by a prefix of its digest."""
    return any(read_note(path.parent).get("store", "").startswith(store) for path in _root().glob("*/pushed.json"))


def hold(execution: Path) -> int:
    """Mark this process as working on an execution until it ends or the returned file descriptor is closed. The kernel
    releases the lock of a killed process."""
    make_folder(execution)
    descriptor = os.open(execution / "alive.lock", os.O_RDWR | os.O_CREAT, 0o644)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    return descriptor


def is_only_holder(descriptor: int) -> bool:
    """Return whether no other process works on the execution. Call it last: it may lose the hold."""
    return try_lock(descriptor)


def is_alive(execution: Path) -> bool:
    """Return whether any process works on an execution."""
    with (execution / "alive.lock").open("a") as lock:
        return not try_lock(lock)


def beat(execution: Path) -> None:
    """Update the sign of life, alive.lock's mtime."""
    with suppress(OSError):  # the disk is unavailable: the run continues without signs of life
        os.utime(execution / "alive.lock")


def close_if_idle(execution: Path) -> bool:
    """Mark the records of an execution that still run as killed, at the last sign of life, unless a process works on
    it. Returns False in that case."""
    if is_alive(execution):
        return False
    record = read_execution(execution)
    stages = {folder: read_stage(folder) for folder in stage_folders(execution)}
    seen = _modified(execution / "alive.lock", execution / "execution.json")
    for folder, run in stages.items():
        if run.status == RUNNING:
            job = Path(located(run.job_dir or str(execution)))
            ended = max(seen, _modified(job / "metrics.jsonl", job / "progress.json", folder / "run.json"))
            error = run.error or "the process was killed, or the machine went down"
            stages[folder] = replace(run, status=KILLED, ended=ended, error=error)
            write_stage(folder, stages[folder])
    if record.status == RUNNING and not record.flyte:  # other pods may still work on it
        ended = max([seen, *(run.ended for run in stages.values() if run.ended)])
        write_execution(execution, replace(record, status=KILLED, ended=ended))
    return True


def _modified(*paths: Path) -> float:
    """The newest mtime of some files."""
    return max((path.stat().st_mtime for path in paths if is_there(path)), default=0.0)


def delivered_mark(tracker: str) -> str:
    """The name of the file that exists once a tracker beside MLflow has all of an execution. No stage's folder has a
    dot in its name."""
    return f"delivered.{tracker}"


def reopen(execution: Path) -> None:
    """Remove the marks that MLflow and the trackers beside it have all of an execution."""
    for mark in (execution / "delivered", *execution.glob("delivered.*")):
        mark.unlink(missing_ok=True)


def is_delivered(execution: Path) -> bool:
    return (execution / "delivered").exists()


@contextmanager
def pushing(execution: Path) -> Iterator[bool]:
    """Yield whether this process may upload an execution now: one at a time, or runs would be created twice."""
    with (execution / "push.lock").open("a") as lock:
        yield try_lock(lock)


def _root() -> Path:
    return baton_home() / "executions"
