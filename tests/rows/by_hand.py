"""Run the row engines by hand, with a job directory, a spec.json and the engine's command."""

import json
from pathlib import Path
from typing import Any

from baton.tasks.core.job import Job, open_job
from baton.tasks.core.manifest import read_manifest
from baton.tasks.data.documents import Split
from baton.tasks.rows import decontaminate, rows
from baton.tasks.rows.stored import read_rows


def new_job(directory: Path, stage: str, spec: dict[str, Any], **inputs: Path) -> Job:
    directory.mkdir(parents=True)
    known = {name: {"path": str(path), "digest": digest(path)} for name, path in inputs.items()}
    request = {"stage": stage, "kind": "rows", "spec": spec, "inputs": known}
    (directory / "spec.json").write_text(json.dumps(request))
    return open_job(directory)


def prepared(directory: Path, **spec: Any) -> Path:
    """Make the set of rows that a spec describes."""
    job = new_job(directory, "rows", spec)
    rows.work(job)
    return job.output


def decontaminated(directory: Path, rows: Path, *against: Path) -> Path:
    others = {f"against.{number}": path for number, path in enumerate(against)}
    job = new_job(directory, "decontaminate", {}, rows=rows, **others)
    decontaminate.work(job)
    return job.output


def digest(rows: Path) -> str:
    return read_manifest(rows).digest


def facts(rows: Path) -> dict[str, Any]:
    return read_manifest(rows).facts


def record(rows: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((rows / "rows.json").read_text())
    return found


def notices(rows: Path) -> list[str]:
    """Return the notices for the user about the set."""
    path = rows / "record" / "notices.jsonl"
    return [json.loads(line)["text"] for line in path.read_text().splitlines()] if path.exists() else []


def split(rows: Path, name: Split) -> list[dict[str, Any]]:
    return list(read_rows(rows, name))


def both(rows: Path) -> list[dict[str, Any]]:
    return split(rows, "train") + split(rows, "held_out")


def jsonl(path: Path, *rows: Any) -> Path:
    """Write a file with one line per row; text and bytes are written unchanged."""
    lines = [row if isinstance(row, str | bytes) else json.dumps(row) for row in rows]
    path.write_bytes(b"".join((line.encode() if isinstance(line, str) else line) + b"\n" for line in lines))
    return path
