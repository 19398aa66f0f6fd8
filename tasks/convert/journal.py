"""The journal of an unfinished conversion: a header, then a line for each weight that was written.

Each line has a digest of its content. A damaged line is ignored and its weight written again; a journal without a
valid header is invalid. The header is synced to disk before any file that it lists is written. Lines are not synced
one by one: a resumed conversion checks them against its weights and the files.
"""

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from infra.storage.durable import write_text
from tasks.convert.transfer import Entry
from tasks.core.manifest import text_digest

JOURNAL = "journal.jsonl"
_TITLE = "an unfinished conversion"
_VERSION = 1


def header(plan: dict[str, Any], files: list[str]) -> dict[str, Any]:
    """`plan`: what is converted and how; `files`: every file that will be written."""
    return {"baton": _TITLE, "version": _VERSION, "files": sorted(files), "plan": plan}


def read(path: Path) -> tuple[dict[str, Any], dict[str, Entry]] | None:
    """The header and the weights listed as written, by name; None if there is no valid journal."""
    try:
        first, *rest = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return None
    head = _content(first)
    if head is None or head.get("baton") != _TITLE or head.get("version") != _VERSION:
        return None
    files = head.get("files")
    if not isinstance(files, list) or not all(isinstance(name, str) for name in files):
        return None
    entries = [entry for line in rest if (content := _content(line)) and (entry := _entry(content))]
    return head, {entry.megatron: entry for entry in entries}


def write(path: Path, first: dict[str, Any], entries: dict[str, Entry]) -> None:
    """Replace a journal, durably."""
    write_text(path, "".join(map(_line, [first, *map(asdict, entries.values())])))


def append(descriptor: int, entry: Entry) -> None:
    os.write(descriptor, _line(asdict(entry)).encode())


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two headers describe the same conversion."""
    return _line(one) == _line(other)


def _line(content: dict[str, Any]) -> str:
    text = json.dumps(content)
    return json.dumps({"digest": text_digest(text), "content": json.loads(text)}) + "\n"


def _content(line: bytes) -> dict[str, Any] | None:
    try:
        outer = json.loads(line)
        content, digest = outer["content"], outer["digest"]
    except (ValueError, KeyError, TypeError, RecursionError):  # not a line of a journal
        return None
    return content if isinstance(content, dict) and text_digest(json.dumps(content)) == digest else None


_ENTRY = TypeAdapter(Entry)


def _entry(content: dict[str, Any]) -> Entry | None:
    """The weight of a line; None if its content is not a weight's."""
    try:
        return _ENTRY.validate_json(json.dumps(content), strict=True)
    except ValidationError:
        return None
