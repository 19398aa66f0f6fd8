"""The place of a stage that runs on another machine, and its progress there."""

import json
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from baton.infra.paths import is_there
from baton.infra.tracking.redact import redact_text
from baton.infra.tracking.spool import RUNNING, StageRun, read_stage, stage_folders, write_stage

# in the environment of a placed stage: its job's name, and the version of the code that was sent there
JOB = "BATON_PLACED"
CODE = "BATON_CODE"


def remote_place() -> dict[str, Any]:
    """On a job's machine, its place as set by SkyPilot; elsewhere empty."""
    if JOB not in os.environ:
        return {}
    place = json.loads(os.environ.get("SKYPILOT_CLUSTER_INFO") or "{}")
    return {"job": os.environ[JOB]} | {name: place[name] for name in ("cloud", "region", "zone") if place.get(name)}


def add_placement(execution: Path, job: str, where: dict[str, Any]) -> bool:
    """Add SkyPilot's facts to the record of a job's stage, once the job has ended: until then the job writes it.
    Returns whether anything changed."""
    ended = [(folder, run) for folder, run in stages_of(execution, job) if run.status != RUNNING]
    changed = [(folder, run) for folder, run in ended if run.placed | where != run.placed]
    for folder, run in changed:
        write_stage(folder, replace(run, placed=run.placed | where))
    return bool(changed)


def progress_of(execution: Path, job: str) -> Path | None:
    """The progress.json of a job's engine, once it exists."""
    running = [run.job_dir for _, run in stages_of(execution, job) if run.job_dir and run.status == RUNNING]
    return next((path for folder in running if is_there(path := Path(folder) / "progress.json")), None)


def is_recorded(execution: Path, job: str) -> bool:
    """Return whether a job was started by this execution, and not by an earlier one."""
    return bool(stages_of(execution, job))


def end_record(execution: Path, job: str, error: str, status: str) -> None:
    """Set the final status of a job's stage, if the job has ended and its machine was lost before it could do so."""
    for folder, run in stages_of(execution, job):
        if run.status == RUNNING:
            write_stage(folder, replace(run, status=status, ended=time.time(), error=redact_text(error)))


def stages_of(execution: Path, job: str) -> list[tuple[Path, StageRun]]:
    """The records of a job's stages."""
    stages = [(folder, read_stage(folder)) for folder in stage_folders(execution)]
    return [(folder, run) for folder, run in stages if run.placed.get("job") == job]
