"""The note and the tags of an execution, which are in no cache key.

They are given when an execution begins, by variables of its environment, or later by `baton note`:

    BATON_NOTE    a text
    BATON_TAGS    a JSON object: {"sweep": "lr", "keep": "yes"}

An execution's note and tags are in a file of their own in the spool, annotations.json, so that `baton note` and the
execution never overwrite each other's records.
"""

import json
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from baton.infra.errors import UserError
from baton.infra.process.file_lock import lock
from baton.infra.storage.durable import write_json
from baton.infra.tracking.redact import redact_text

NOTE, TAGS = "BATON_NOTE", "BATON_TAGS"
FILE = "annotations.json"
NAME = re.compile(r"[A-Za-z0-9_][\w.-]{0,59}", re.ASCII)  # of a tag
LONGEST_NOTE, LONGEST_VALUE, MOST_TAGS = 2000, 200, 30


class AnnotationRefused(UserError):
    """Raised if a note or a tag is not allowed."""


def annotations(note: str, tags: Iterable[str]) -> dict[str, str]:
    """Return the environment variables for an execution with a note and tags such as `sweep=lr`, for the process that
    begins it. Raises AnnotationRefused."""
    variables = {NOTE: checked_note(note)} if note else {}
    named = dict(map(parse_tag, tags))
    return variables | ({TAGS: json.dumps(checked_tags(named))} if named else {})


def given() -> tuple[str, dict[str, str]]:
    """Return the note and the tags in this process's environment. Raises AnnotationRefused."""
    text = os.environ.get(TAGS)
    try:
        tags = json.loads(text) if text else {}
    except ValueError:
        tags = None
    if not isinstance(tags, dict) or not all(isinstance(value, str) for value in tags.values()):
        raise AnnotationRefused(f'{TAGS}={text}: a JSON object of texts, such as {{"sweep": "lr"}}')
    return checked_note(os.environ.get(NOTE, "")), checked_tags(tags)


def parse_tag(text: str) -> tuple[str, str]:
    """Parse `name=value`. Raises AnnotationRefused."""
    name, equals, value = text.partition("=")
    if not equals:
        raise AnnotationRefused(f"{text!r} is not a tag, such as sweep=lr")
    return name.strip(), value.strip()


def checked_note(text: str) -> str:
    """Return a note without secrets. Raises AnnotationRefused."""
    if len(text) > LONGEST_NOTE:
        raise AnnotationRefused(f"the note has {len(text):,} characters; at most {LONGEST_NOTE:,} are allowed")
    return redact_text(text.strip())


def checked_tags(tags: Mapping[str, str]) -> dict[str, str]:
    """Return tags without secrets. Raises AnnotationRefused."""
    for name, value in tags.items():
        if not NAME.fullmatch(name):
            raise AnnotationRefused(f"tag {name[:80]!r}: a name has letters, digits, _, . and -, at most 60")
        if len(value) > LONGEST_VALUE:
            raise AnnotationRefused(f"tag {name}: its value has {len(value):,} characters, at most {LONGEST_VALUE}")
    if len(tags) > MOST_TAGS:
        raise AnnotationRefused(f"{len(tags)} tags; an execution has at most {MOST_TAGS}")
    return {name: redact_text(value) for name, value in tags.items()}


def read_annotations(execution: Path) -> tuple[str | None, dict[str, str]]:
    """Return the note and the tags of an execution in the spool; None if it never had a note. A removed tag is empty.
    Raises ValueError, TypeError, KeyError, AttributeError for a damaged file."""
    try:
        found = json.loads((execution / FILE).read_text())
    except FileNotFoundError:
        return None, {}
    return str(found["note"]), {str(name): str(value) for name, value in found["tags"].items()}


def annotate(execution: Path, note: str | None, tags: Mapping[str, str]) -> None:
    """Replace the note of an execution in the spool, unless it is None, and add tags. An empty value removes a tag.
    Raises AnnotationRefused."""
    with (execution / "annotations.lock").open("a") as file:
        lock(file, "waiting for another `baton note`")
        known, before = read_annotations(execution)
        new = checked_tags({**before, **tags})
        write_json(execution / FILE, {"note": known if note is None else checked_note(note), "tags": new})
