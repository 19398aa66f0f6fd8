"""The death of a job's engine, noted for the pod or the machine that starts it again in the same execution."""

import json
from dataclasses import asdict
from pathlib import Path

from infra.process.death import Death
from infra.storage import buckets as storage
from infra.storage.durable import write_json
from infra.tracking.execution import execution_id
from infra.tracking.redact import redact_text
from tasks.core.offsite import Offsite


def earlier_death(job_dir: Path, remote: Offsite | None, node: int) -> Death | None:
    """The one of the start before this, in this execution."""
    name = _name(node)
    try:
        noted = storage.read(f"{remote.address}/{name}") if remote else (job_dir / name).read_bytes()
    except FileNotFoundError:
        return None
    known = json.loads(noted)
    return Death(**known["death"]) if known["execution"] == execution_id() else None


def note_death(death: Death, job_dir: Path, remote: Offsite | None, node: int) -> None:
    """Keep it in the job's folder, and in storage if that folder is lost with this pod."""
    told = asdict(death) | {"summary": redact_text(death.summary)}
    write_json(job_dir / _name(node), {"execution": execution_id(), "death": told})
    if remote:
        storage.put(job_dir, [_name(node)], remote.address)


def _name(node: int) -> str:
    return f"died-node-{node}.json" if node else "died.json"
