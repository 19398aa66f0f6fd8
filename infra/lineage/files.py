"""An artifact's files and a run's log, where they are on this machine.

Paths come from the record, and who writes to MLflow writes the record: nothing outside of Baton's home is
looked at, links are followed first, and what is read has a name that is fixed here.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from infra.home import baton_home
from infra.tracking.redact import redact, redact_text

LARGEST = 4 << 20  # bytes of a JSON file that is shown
LOG_BYTES = 24_000
SAMPLES = 12
RECORDS = ("record/samples.json", "record/sample.json", "audit.json", "report.json", "model.json", "config.json")


@dataclass(frozen=True)
class Files:
    """`state`: here; gone (moved or deleted); changed (something else is there now); elsewhere (not in this
    machine's Baton home); unknown (the record does not say where)."""

    state: str
    directory: str = ""
    files: list[dict[str, Any]] = field(default_factory=list)  # name, bytes, blake3
    records: dict[str, Any] = field(default_factory=dict)  # name -> content


def look(job: str | None, digest: str) -> Files:
    """What is at JOB/output."""
    if not job:
        return Files("unknown")
    shown = f"{job}/output"
    directory = _inside(Path(job) / "output")
    if directory is None:
        return Files("elsewhere", shown)
    manifest = _json(directory / "manifest.json")
    if not isinstance(manifest, dict) or not isinstance(manifest.get("files"), dict):
        return Files("gone", shown)
    if manifest.get("digest") != digest:
        return Files("changed", shown)
    entries = [(str(name), entry) for name, entry in sorted(manifest["files"].items()) if isinstance(entry, dict)]
    files = [{"name": name, "bytes": entry.get("size"), "blake3": entry.get("blake3")} for name, entry in entries]
    found = {name: _json(directory / name) for name in RECORDS}
    return Files("here", shown, files, {name: redact(_first(each)) for name, each in found.items() if each})


def log(job: str | None) -> str | None:
    """The last lines of a run's log, or None where it is not at hand."""
    path = _inside(Path(job) / "log.txt") if job else None
    if path is None or not path.is_file():
        return None
    with path.open("rb") as stream:
        stream.seek(max(0, path.stat().st_size - LOG_BYTES))
        return redact_text(stream.read().decode(errors="replace"))


def _inside(path: Path) -> Path | None:
    """The path without links, if it is in Baton's home."""
    try:
        resolved = path.resolve()
    except (OSError, ValueError):  # a name that no file can have
        return None
    return resolved if resolved.is_relative_to(baton_home().resolve()) else None


def _json(path: Path) -> Any | None:
    inside = _inside(path)
    try:
        if inside is None or inside.stat().st_size > LARGEST:
            return None
        return json.loads(inside.read_text())
    except (OSError, ValueError):
        return None  # shown as not there


def _first(content: Any) -> Any:
    return content[:SAMPLES] if isinstance(content, list) else content
