"""Record one stage from its start to its end."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from baton.infra.errors import sentence
from baton.infra.paths import baton_home
from baton.infra.pod import this_pod
from baton.infra.progress import say
from baton.infra.storage.disk_errors import disk_errors_named
from baton.infra.tracking.code import code_version
from baton.infra.tracking.execution import current_execution, wake
from baton.infra.tracking.flatten import flatten
from baton.infra.tracking.machine import machine
from baton.infra.tracking.redact import redact, redact_text
from baton.infra.tracking.remote_run import remote_place
from baton.infra.tracking.spool import (
    FAILED,
    FINISHED,
    KILLED,
    StageRun,
    read_stage,
    stage_folder,
    stage_folders,
    write_stage,
)
from baton.infra.versions import package_versions

ERROR_LINES = 5  # lines of a failure's message; the log has all of it
RESERVED = 2**20  # bytes of a pod's disk for what a failure writes: its record, and Flyte's file with the error


@dataclass
class Record:
    """The part of the record that the stage adds."""

    output: dict[str, Any] | None = None

    def log_output(self, kind: str, digest: str, facts: dict[str, Any], shown: Mapping[str, str] | None = None) -> None:
        """Record the stage's artifact. `shown`: how the lineage pages show it (tasks/artifacts.py)."""
        self.output = _output(kind, digest, facts, shown or {})


@contextmanager
def tracked(
    title: str, job_dir: Path, *, spec: dict[str, Any], inputs: dict[str, str], command: str = ""
) -> Iterator[Record]:
    """Track a stage while the body runs: its parameters (`spec`, flattened), its inputs' digests, the metrics that its
    engine appends to JOB_DIR/metrics.jsonl, the `command` that reproduces it, where it ran, and its final status.
    Exceptions pass through: Ctrl-C and SIGTERM are recorded as KILLED, errors as FAILED."""
    folder = stage_folder(current_execution(title), title, str(job_dir))
    run = _run(title, str(job_dir), spec, inputs, command)
    write_stage(folder, run)
    record = Record()
    status, message = FINISHED, None
    try:
        yield record
    except (KeyboardInterrupt, SystemExit):
        status = KILLED
        raise
    except BaseException as error:
        status, message = FAILED, _first_lines(error)
        _reserve().unlink(missing_ok=True)
        raise
    finally:
        ended = replace(run, status=status, ended=time.time(), error=message, output=record.output)
        try:
            write_stage(folder, ended)
        except OSError as error:  # the disk is full
            if status == FINISHED:
                raise
            say(f"tracking: the record of {title} could not be written ({error})")  # the first error is raised
        wake()


def note_cached(
    title: str,
    kind: str,
    digest: str,
    facts: dict[str, Any],
    *,
    spec: dict[str, Any] | None = None,
    inputs: dict[str, str] | None = None,
    job_dir: Path | None = None,
    shown: dict[str, str] | None = None,
    without_pod: bool = False,
) -> None:
    """Record a stage whose artifact came from Flyte's cache, with the spec, inputs and job directory that made it.
    `shown`: as in Record.log_output. `without_pod`: the stage had no pod; all pods that note it write one record."""
    job = str(job_dir) if job_dir else digest if this_pod() else None  # a pod may note several of one title
    folder = stage_folder(current_execution(title), title, job)
    if (folder / "run.json").exists() and read_stage(folder).status == FINISHED:
        return  # made by this execution, before it was resumed
    run = _run(title, None if job_dir is None else str(job_dir), spec or {}, inputs or {}, "")
    output = _output(kind, digest, facts, shown or {})
    run = replace(run, ended=run.started, status=FINISHED, cached=True, output=output)
    write_stage(folder, replace(run, pod="") if without_pod else run)


def _output(kind: str, digest: str, facts: dict[str, Any], shown: Mapping[str, str]) -> dict[str, Any]:
    return {"kind": kind, "digest": digest, "facts": redact(facts), "shown": redact(dict(shown))}


def _reserve() -> Path:
    return baton_home() / "reserve"


def _run(title: str, job_dir: str | None, spec: dict[str, Any], inputs: dict[str, str], command: str) -> StageRun:
    """The record of a stage that starts now."""
    return StageRun(
        title=title,
        params=flatten(redact(spec)),
        inputs=inputs,
        job_dir=job_dir,
        code=code_version(),
        versions=package_versions(),
        started=time.time(),
        command=redact_text(command),
        machine=machine(),
        placed=remote_place(),
        pod=pod.name if (pod := this_pod()) else "",
    )


@contextmanager
def failure_recorded(title: str) -> Iterator[None]:
    """In a pod, record a stage that fails outside of `tracked`, such as while it gets its inputs. Some disk space is
    reserved for the record and for Flyte's own file with the error, in case the stage fills the disk."""
    if this_pod():
        with disk_errors_named():
            _reserve().write_bytes(bytes(RESERVED))
    try:
        yield
    except Exception as error:
        if this_pod():
            _reserve().unlink(missing_ok=True)
            execution = current_execution(title)
            if not any(read_stage(stage).status == FAILED for stage in stage_folders(execution)):
                run = _run(title, None, {}, {}, "")
                failed = replace(run, status=FAILED, ended=time.time(), error=_first_lines(error.__cause__ or error))
                write_stage(stage_folder(execution, title, None), failed)
        raise


def _first_lines(error: BaseException) -> str:
    lines = sentence(error).splitlines()
    return redact_text("\n".join(lines[:ERROR_LINES]))
