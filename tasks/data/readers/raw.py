"""One document as read from a source, and the checks of every format's reader.

Its text is bytes, because the corpus engine checks whether they are UTF-8. Text from JSON may have lone surrogates; it
is encoded with "surrogatepass", which yields invalid UTF-8.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import pyarrow as pa
from pydantic import BaseModel

from baton.infra.storage.address import File
from baton.tasks.core.job import StageError
from baton.tasks.data.json_values import NotJson, json_value
from baton.tasks.data.source_spec import ArrowSource, JsonlSource, ParquetSource, WarcSource

SHOWN = 10  # broken files in a message

Breakable = JsonlSource | ParquetSource | ArrowSource | WarcSource


class BrokenFile(StageError):
    """A file is damaged, truncated or not in its format."""


class BrokenRecord(BrokenFile):
    """One record of a file is damaged or not in its format; the others can be read."""


class Skipped(BaseModel):
    """The skipped parts of a file: broken records, or everything after a place in it."""

    records: int = 0
    first: str = ""  # the error of the first of them
    rest: str = ""  # why the rest of the file could not be read

    def add(self, other: "Skipped") -> None:
        self.records += other.records
        self.first, self.rest = self.first or other.first, self.rest or other.rest

    def __str__(self) -> str:
        more = f" (and {self.records - 1:,} more records of this file)" if self.records > 1 else ""
        return "; ".join(filter(None, [f"{self.first}{more}" if self.records else "", self.rest]))


Broken = dict[str, Skipped]  # file name -> skipped parts


def add_broken(all_of: Broken, more: Broken, prefix: str = "") -> None:
    for name, skipped in more.items():
        all_of.setdefault(f"{prefix}{name}", Skipped()).add(skipped)


class Raw(NamedTuple):
    """One document as read from the source."""

    source: str
    text: bytes
    done: float  # fraction of the source that has been read; 0 if unknown
    metadata: str = ""  # the record's chosen fields as JSON; empty if its source chooses none


def note_broken(source: Breakable, item: File, broken: Broken | None, error: BrokenFile, records: int = 1) -> None:
    """Note the skipped part of a file, or raise the error if the source stops at it or `broken` is None. `records`: the
    number of broken records that a BrokenRecord reports."""
    if source.on_broken == "stop" or broken is None:
        raise error
    skipped = (
        Skipped(records=records, first=str(error)) if isinstance(error, BrokenRecord) else Skipped(rest=str(error))
    )
    add_broken(broken, {item.name: skipped})


def broken_text(broken: Broken) -> str:
    """A message about the skipped parts of files."""
    files = [str(skipped) for skipped in broken.values()]
    more = [f"and {len(files) - SHOWN} more files"] if len(files) > SHOWN else []
    return f"skipped as broken (on_broken: skip): {'; '.join([*files[:SHOWN], *more])}"


@contextmanager
def skipping(source: Breakable, item: File, broken: Broken | None) -> Iterator[None]:
    """Pass a BrokenFile that is raised to `note_broken`."""
    try:
        yield
    except BrokenFile as error:
        note_broken(source, item, broken, error)


@contextmanager
def as_broken(where: str, kind: str, error: type[BrokenFile] = BrokenFile) -> Iterator[None]:
    """Raise Arrow's errors about content that is not in its format as BrokenFile."""
    try:
        yield
    except (pa.ArrowException, OSError) as fault:
        if isinstance(fault, OSError) and fault.errno is not None:
            raise  # an error of the disk, not of the content
        message = f"{where}: not readable as {kind} ({fault}); download it again, or set on_broken: skip"
        raise error(message) from fault


def refuse_large(size: int, most: int, where: str) -> None:
    """Raise StageError if a document has more than `most` bytes."""
    if size > most:
        raise StageError(
            f"{where}: larger than max_document_mb = {most / 1e6:g} MB. Raise it (needs more memory), split the "
            "document, or remove it."
        )


def chosen_fields(record: Mapping[str, Any], names: Sequence[str]) -> str:
    """Return the named fields that a record has, as JSON; values that JSON cannot represent become text. Empty without
    names."""
    return json.dumps({name: _in_json(record[name]) for name in names if name in record}) if names else ""


def _in_json(value: Any) -> Any:
    try:
        return json_value(value)[0]
    except NotJson:
        return str(value)


def encoded(text: Any, where: str) -> bytes:
    """A document's bytes; None is an empty document. Raises StageError for other types."""
    if text is None:
        return b""
    if isinstance(text, bytes):
        return text
    if not isinstance(text, str):
        raise StageError(f"{where}: the text is a {type(text).__name__}; choose a text_field that holds text")
    return text.encode("utf-8", "surrogatepass")
