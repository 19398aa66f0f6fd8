"""Store how a job's engine ended for the pod or machine that starts it again in the same execution."""

import json
from dataclasses import asdict
from pathlib import Path

from baton.infra.process.death import Death
from baton.infra.progress import say
from baton.infra.storage import buckets as storage
from baton.infra.storage.buckets import StorageError
from baton.infra.storage.durable import write_json
from baton.infra.text import clause
from baton.infra.tracking.execution import execution_id
from baton.infra.tracking.redact import redact_text
from baton.tasks.core.offsite import Offsite


def earlier_death(job_dir: Path, remote: Offsite | None, node: int) -> Death | None:
    """Return how the engine's previous start in this execution ended, or None if this is the first start."""
    name = _name(node)
    try:
        noted = storage.read(f"{remote.address}/{name}") if remote else (job_dir / name).read_bytes()
    except FileNotFoundError:
        return None
    known = json.loads(noted)
    return Death(**known["death"]) if known["execution"] == execution_id() else None


def note_death(death: Death, job_dir: Path, remote: Offsite | None, node: int) -> None:
    """Write a death to the job's folder, or to storage if that folder is lost with this pod. A full disk or an
    unreachable storage is only printed, since the caller must report the engine's own failure."""
    note = {"execution": execution_id(), "death": asdict(death) | {"summary": redact_text(death.summary)}}
    try:
        write_json(job_dir / _name(node), note)
        if remote:
            storage.put(job_dir, [_name(node)], remote.address)
    except (OSError, StorageError) as error:
        say(f"the next start will not know how this one ended, because it could not be stored: {clause(error)}")


def _name(node: int) -> str:
    return f"died-node-{node}.json" if node else "died.json"
