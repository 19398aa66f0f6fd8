"""What an unfinished conversion says about itself: a header, then a line for each weight that was written.

Each line carries a digest of its content. A line that is damaged counts for nothing, and its weight is written again;
without its header a journal is not one. The header is on the disk before anything that it lists is written. The lines
are not synced one by one: they are claims, which a resumed conversion checks against the files.
"""

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from infra.durable import write_text
from tasks.convert.transfer import Entry, Part
from tasks.manifest import text_digest

JOURNAL = "journal.jsonl"
_TITLE = "an unfinished conversion"
_VERSION = 1


def header(plan: dict[str, Any], files: list[str]) -> dict[str, Any]:
    """`plan`: what is converted and how; `files`: all that will be written."""
    return {"baton": _TITLE, "version": _VERSION, "files": sorted(files), "plan": plan}


def read(path: Path) -> tuple[dict[str, Any], dict[str, Entry]] | None:
    """The header, and the weights that are said to be written, by name; None when there is no valid journal."""
    try:
        first, *rest = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return None
    found = _content(first)
    if found is None or found.get("baton") != _TITLE or found.get("version") != _VERSION:
        return None
    entries = [_entry(content) for line in rest if (content := _content(line)) and "megatron" in content]
    return found, {entry.megatron: entry for entry in entries}


def write(path: Path, first: dict[str, Any], entries: dict[str, Entry]) -> None:
    """Replace a journal, durably."""
    write_text(path, "".join(map(_line, [first, *map(asdict, entries.values())])))


def append(descriptor: int, entry: Entry) -> None:
    os.write(descriptor, _line(asdict(entry)).encode())


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two headers are of the same conversion."""
    return _line(one) == _line(other)


def _line(content: dict[str, Any]) -> str:
    text = json.dumps(content)
    return json.dumps({"digest": text_digest(text), "content": json.loads(text)}) + "\n"


def _content(line: bytes) -> dict[str, Any] | None:
    try:
        outer = json.loads(line)
        content, digest = outer["content"], outer["digest"]
    except (ValueError, KeyError, TypeError, RecursionError):  # what is no line of a journal
        return None
    return content if isinstance(content, dict) and text_digest(json.dumps(content)) == digest else None


def _entry(content: dict[str, Any]) -> Entry:
    return Entry(**content | {"parts": [Part(**part) for part in content["parts"]]})
