"""An artifact's files and a run's log, if they are on this machine.

Paths come from the record, which anyone who can write to MLflow can write. So nothing outside Baton's home is opened,
links are resolved first, and only files that a manifest lists, or whose names are fixed here, are read.
"""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from baton.infra.lineage.facts import from_json, json_or
from baton.infra.paths import REMOVED, home_path, is_there, located
from baton.infra.tracking.redact import KEY_CHARACTERS, hide_keys, redact, redact_lines, redact_parts, redact_text

LARGEST = 4 << 20  # bytes of a JSON file that is shown
LARGEST_LINES = 64 << 20  # bytes of a .jsonl file whose lines are compared
LARGEST_MANIFEST = 256 << 20  # bytes; a corpus's manifest names every partition
LOG_BYTES = 256_000  # bytes at the end of a log that are shown; redacting them takes a second
LOG_TAIL_BYTES = 16_000  # shown on a run's page
MOST_MATCHES = 1000  # lines that a search shows
CHUNK_BYTES = 1 << 20
BLOCK_BYTES = 64 << 20  # block of a log, whose lines are counted once
SAMPLES = 12
SNIFFED = 8192  # bytes by which text is distinguished from other content
COMPRESSED = (".gz", ".zst", ".png")
TOKENS = ("tokenizer.json", "vocab.json", "merges.txt")
RECORDS = ("record/samples.json", "record/sample.json", "audit.json", "report.json", "model.json", "config.json")


@dataclass(frozen=True)
class Files:
    """`state`: here; removed (by `baton gc`); gone (moved or deleted); changed (replaced by another artifact);
    elsewhere (not in this machine's Baton home); unknown (not recorded)."""

    state: str
    directory: str = ""
    files: list[dict[str, Any]] = field(default_factory=list)  # name, bytes, blake3
    records: dict[str, Any] = field(default_factory=dict)  # name -> content


@dataclass(frozen=True)
class Log:
    """Lines of a log, redacted, with their numbers."""

    lines: list[tuple[int, str]]
    bytes: int  # size of the entire log
    whole: bool  # `lines` has every line of the log, or every line that matches


def look(job: str | None, digest: str) -> Files:
    """Examine JOB/output."""
    if not job:
        return Files("unknown")
    shown = located(f"{job}/output")
    directory = _inside(Path(shown))
    if directory is None or _is_closed(directory / "manifest.json"):
        return Files("elsewhere", shown)
    manifest = _json(directory / "manifest.json", LARGEST_MANIFEST)
    if not isinstance(manifest, dict) or not isinstance(manifest.get("files"), dict):
        return Files("gone", shown)
    if manifest.get("digest") != digest:
        return Files("changed", shown)
    entries = [(str(name), entry) for name, entry in sorted(manifest["files"].items()) if isinstance(entry, dict)]
    files = [{"name": name, "bytes": entry.get("size"), "blake3": entry.get("blake3")} for name, entry in entries]
    records = {name: _json(directory / name) for name in RECORDS}
    shown_records = {name: redact(_first(record)) for name, record in records.items() if record}
    is_removed = is_there(directory / REMOVED) and not all(is_there(directory / name) for name, _ in entries)
    return Files("removed" if is_removed else "here", shown, files, shown_records)


def naming(text: str) -> set[str]:
    """The digests of the artifacts in Baton's home with a file whose name has this text, in lower case."""
    found = set()
    for path in (home_path() / "jobs").glob("*/output/manifest.json"):
        try:
            stat = path.stat()
        except OSError:  # removed meanwhile, or closed to this user
            continue
        digest, names = _names(path, stat.st_ino, stat.st_mtime_ns) if stat.st_size <= LARGEST else ("", ())
        if any(text in name for name in names):
            found.add(digest)
    return found


@lru_cache(maxsize=20_000)
def _names(path: Path, inode: int, changed: int) -> tuple[str, tuple[str, ...]]:
    """The digest of a manifest, and the names of its files, in lower case."""
    manifest = _json(path)
    if not isinstance(manifest, dict) or not isinstance(manifest.get("files"), dict):
        return "", ()
    return str(manifest.get("digest", "")), tuple(str(name).lower() for name in manifest["files"])


def file_of(job: str | None, digest: str, name: str) -> Path | None:
    """The path of a file that the artifact's manifest lists; None when it is not at hand."""
    output = look(job, digest)
    if output.state != "here" or name not in {file["name"] for file in output.files}:
        return None
    return _readable(Path(output.directory) / name)


def paths_of(output: Files) -> dict[str, Path | None]:
    """The paths of all files that the artifact's manifest lists, by name; None for one that is not at hand."""
    return {file["name"]: _readable(Path(output.directory) / file["name"]) for file in output.files}


def shown(path: Path) -> Iterator[str] | None:
    """A file's content in pieces, redacted; None for a file that is served as it is: one that is not text, or that has
    tokens, for which the name of a secret means nothing."""
    if path.name in TOKENS or path.name.endswith(".index.json") or not _is_text(path):
        return None
    content = _json(path) if path.suffix == ".json" else None
    return redact_parts(_chunks(path)) if content is None else iter([json.dumps(redact(content), indent=1)])


def _is_text(path: Path) -> bool:
    """Return whether a file is text, by git's rule: it has no zero byte near its beginning."""
    with path.open("rb") as stream:
        return path.suffix not in COMPRESSED and b"\0" not in stream.read(SNIFFED)


def spec_of(job: str | None, digest: str) -> dict[str, Any] | None:
    """The spec in an artifact's manifest, complete and redacted; None when it is not at hand."""
    directory = _inside(Path(job) / "output") if job else None
    manifest = _json(directory / "manifest.json", LARGEST_MANIFEST) if directory else None
    if not isinstance(manifest, dict) or manifest.get("digest") != digest or not isinstance(manifest.get("spec"), dict):
        return None
    return dict(redact(manifest["spec"]))


def lines_of(job: str | None, digest: str, name: str) -> list[dict[str, Any]] | None:
    """The objects of an artifact's .jsonl file, none if the artifact lacks it; None when it is not at hand, or too
    large to be read for a page."""
    output = look(job, digest)
    if output.state == "here" and name not in {file["name"] for file in output.files}:
        return []
    path = file_of(job, digest, name)
    if path is None or path.stat().st_size > LARGEST_LINES:
        return None
    with path.open("rb") as stream:
        return [line for text in stream if isinstance(line := json_or(text.decode(errors="replace")), dict)]


def tail(job: str | None, most: int = LOG_TAIL_BYTES) -> tuple[str, bool] | None:
    """The last complete lines of a run's log within `most` bytes, redacted, and whether they are the entire log; None
    when the log is not at hand."""
    path = _log_path(job)
    if path is None:
        return None
    text, start = _end(path, most)
    return "\n".join(_lines(text)), start == 0


def log(job: str | None, find: str = "") -> Log | None:
    """The end of a run's log, or the lines that contain `find` in any case; None when the log is not at hand."""
    path = _log_path(job)
    if path is None:
        return None
    if find:
        return _search(path, find.lower())
    text, start = _end(path, LOG_BYTES)
    lines = _lines(text)
    return Log(list(enumerate(lines, _newlines_before(path, start) + 1)), path.stat().st_size, start == 0)


def _end(path: Path, most: int) -> tuple[str, int]:
    """The complete lines in a file's last `most` bytes, or the end of a longer line, redacted as in the entire file;
    and the byte at which they begin."""
    with path.open("rb") as stream:
        size = stream.seek(0, os.SEEK_END)
        start = max(0, size - most)
        stream.seek(max(0, start - KEY_CHARACTERS))
        before, text = stream.read(min(start, KEY_CHARACTERS)), stream.read(most)
    if start and (cut := text.find(b"\n") + 1):
        before, text, start = before + text[:cut], text[cut:], start + cut
    elif start:
        return redact_text((before + text).decode(errors="replace"))[-most:], start
    _, left = hide_keys(before.decode(errors="replace"))
    return redact_lines(hide_keys(text.decode(errors="replace"), left)[0]), start


def _newlines_before(path: Path, end: int) -> int:
    """Count the newlines before a byte. A log only grows, so its complete blocks are counted once."""
    inode, blocks = path.stat().st_ino, end // BLOCK_BYTES
    rest = _newlines(path, blocks * BLOCK_BYTES, end - blocks * BLOCK_BYTES)
    return sum(_newlines_of_block(path, inode, block) for block in range(blocks)) + rest


@lru_cache(maxsize=10_000)
def _newlines_of_block(path: Path, inode: int, block: int) -> int:
    return _newlines(path, block * BLOCK_BYTES, BLOCK_BYTES)


def _newlines(path: Path, start: int, length: int) -> int:
    count = 0
    with path.open("rb") as stream:
        stream.seek(start)
        while length > 0 and (chunk := stream.read(min(length, CHUNK_BYTES))):
            count += chunk.count(b"\n")
            length -= len(chunk)
    return count


def _search(path: Path, find: str) -> Log:
    matches: list[tuple[int, str]] = []
    number = left = 0
    for chunk in _chunks(path):
        chunk, left = hide_keys(chunk, left)
        for line in _lines(chunk):
            number += 1
            # a match is searched for again after redaction: a search must not reveal the content of a secret
            if find in line.lower() and find in (shown := redact_lines(line)).lower():
                if len(matches) == MOST_MATCHES:
                    return Log(matches, path.stat().st_size, whole=False)
                matches.append((number, shown))
    return Log(matches, path.stat().st_size, whole=True)


def _lines(text: str) -> list[str]:
    """Lines as a terminal shows them: a progress bar is reduced to its last state."""
    return [line.rstrip("\r").rpartition("\r")[2] for line in text.removesuffix("\n").split("\n")] if text else []


def full_log(job: str | None) -> Iterator[str] | None:
    """The entire log of a run, redacted, in chunks of complete lines; None when it is not at hand."""
    path = _log_path(job)
    return None if path is None else redact_parts(_chunks(path))


def _chunks(path: Path) -> Iterator[str]:
    """A file's text in pieces that end with a line; only a line longer than a piece is cut, between two words."""
    rest = b""
    with path.open("rb") as stream:
        while chunk := stream.read(CHUNK_BYTES):
            piece = rest + chunk + stream.readline(CHUNK_BYTES)
            cut = len(piece) if piece.endswith(b"\n") else max(piece.rfind(b"\r"), piece.rfind(b" ")) + 1 or len(piece)
            rest = piece[cut:]
            yield piece[:cut].decode(errors="replace")
    if rest:
        yield rest.decode(errors="replace")


def _log_path(job: str | None) -> Path | None:
    return _readable(Path(job) / "log.txt") if job else None


def _readable(path: Path) -> Path | None:
    """A file in Baton's home, if this user may read it."""
    inside = _inside(path)
    return inside if inside is not None and os.access(inside, os.R_OK) and inside.is_file() else None


def _is_closed(path: Path) -> bool:
    """Return whether this user may not see if a file exists."""
    try:
        path.open("rb").close()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return False


def _inside(path: Path) -> Path | None:
    """The path with links resolved, if it is in Baton's home, which may have been moved since the path was stored."""
    try:
        resolved = Path(located(str(path))).resolve()
    except (OSError, ValueError, RuntimeError):  # not a possible file name, or a loop of links
        return None
    return resolved if resolved.is_relative_to(home_path().resolve()) else None


def _json(path: Path, largest: int = LARGEST) -> Any | None:
    inside = _inside(path)
    try:
        if inside is None or inside.stat().st_size > largest:
            return None
        return from_json(inside.read_text())
    except (OSError, ValueError):
        return None  # shown as missing


def _first(content: Any) -> Any:
    return content[:SAMPLES] if isinstance(content, list) else content
