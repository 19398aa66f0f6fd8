"""An artifact's files and a run's log, where they are on this machine.

Paths come from the record, which anyone who can write to MLflow can write. So nothing outside Baton's home is opened,
links are resolved first, and only files that a manifest lists, or whose names are fixed here, are read.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from infra.paths import baton_home
from infra.tracking.redact import redact, redact_text

LARGEST = 4 << 20  # bytes of a JSON file that is shown
LOG_BYTES = 256_000  # shown of a log: its end. Redaction takes a second for it
LOG_TAIL_BYTES = 16_000  # shown on a run's page
MOST_MATCHES = 1000  # lines that a search shows
CHUNK_BYTES = 1 << 20
SAMPLES = 12
RECORDS = ("record/samples.json", "record/sample.json", "audit.json", "report.json", "model.json", "config.json")


@dataclass(frozen=True)
class Files:
    """`state`: here; gone (moved or deleted); changed (another artifact is there now); elsewhere (not in this
    machine's Baton home); unknown (not recorded)."""

    state: str
    directory: str = ""
    files: list[dict[str, Any]] = field(default_factory=list)  # name, bytes, blake3
    records: dict[str, Any] = field(default_factory=dict)  # name -> content


@dataclass(frozen=True)
class Log:
    """Lines of a log, redacted, with their numbers."""

    lines: list[tuple[int, str]]
    bytes: int  # of the whole log
    whole: bool  # every line of it, or every line that matches


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
    return Files("here", shown, files, {name: redact(_first(record)) for name, record in found.items() if record})


def file_of(job: str | None, digest: str, name: str) -> Path | None:
    """The path of a file that the artifact's manifest lists; None when it is not at hand."""
    found = look(job, digest)
    if found.state != "here" or name not in {file["name"] for file in found.files}:
        return None
    path = _inside(Path(found.directory) / name)
    return path if path is not None and path.is_file() else None


def samples(job: str | None, digest: str) -> list[dict[str, Any]]:
    """An evaluation's samples, as far as they are at hand."""
    found = look(job, digest).records.get("record/samples.json")
    return [sample for sample in found if isinstance(sample, dict)] if isinstance(found, list) else []


def log(job: str | None, find: str = "", most: int = LOG_BYTES) -> Log | None:
    """The end of a run's log, or the lines that contain `find` in any case; None when the log is not at hand."""
    path = _log_path(job)
    if path is None:
        return None
    content = path.read_bytes()
    if find:
        return _search(content.decode(errors="replace"), find.lower(), len(content))
    start = max(0, len(content) - most)
    start = content.find(b"\n", start) + 1 if start else 0
    lines = _lines(redact_text(content[start:].decode(errors="replace")))
    return Log(list(enumerate(lines, content.count(b"\n", 0, start) + 1)), len(content), start == 0)


def _search(text: str, find: str, size: int) -> Log:
    found: list[tuple[int, str]] = []
    for number, line in enumerate(_lines(text), 1):
        # a match is looked for again after redaction: a search must not reveal what a secret contains
        if find in line.lower() and find in (shown := redact_text(line)).lower():
            if len(found) == MOST_MATCHES:
                return Log(found, size, whole=False)
            found.append((number, shown))
    return Log(found, size, whole=True)


def _lines(text: str) -> list[str]:
    """Lines as a terminal shows them: of a progress bar, what was written last."""
    return [line.rstrip("\r").rpartition("\r")[2] for line in text.removesuffix("\n").split("\n")] if text else []


def whole_log(job: str | None) -> Iterator[str] | None:
    """All of a run's log, redacted, in chunks of whole lines; None when it is not at hand."""
    path = _log_path(job)
    return None if path is None else _chunks(path)


def _chunks(path: Path) -> Iterator[str]:
    with path.open(errors="replace") as stream:
        while lines := stream.readlines(CHUNK_BYTES):
            yield redact_text("".join(lines))


def _log_path(job: str | None) -> Path | None:
    path = _inside(Path(job) / "log.txt") if job else None
    return path if path is not None and path.is_file() else None


def _inside(path: Path) -> Path | None:
    """The path with links resolved, if it is in Baton's home."""
    try:
        resolved = path.resolve()
    except (OSError, ValueError):  # not a possible file name
        return None
    return resolved if resolved.is_relative_to(baton_home().resolve()) else None


def _json(path: Path) -> Any | None:
    inside = _inside(path)
    try:
        if inside is None or inside.stat().st_size > LARGEST:
            return None
        return json.loads(inside.read_text())
    except (OSError, ValueError):
        return None  # shown as missing


def _first(content: Any) -> Any:
    return content[:SAMPLES] if isinstance(content, list) else content
