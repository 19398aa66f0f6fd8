"""One document as found in a source, and what every format's reader checks.

Its text is bytes, because the corpus engine checks whether they are UTF-8. Text from JSON may have lone surrogates; it
is encoded with "surrogatepass", which yields invalid UTF-8.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import pyarrow as pa

from infra.placement.address import File
from tasks.data.source_spec import ArrowSource, JsonlSource, ParquetSource, WarcSource
from tasks.job import StageError


class BrokenFile(StageError):
    """A file is damaged, truncated or not in its format."""


class Raw(NamedTuple):
    """One document as found in the source."""

    source: str
    text: bytes
    done: float  # fraction of the source that has been read; 0 if unknown
    metadata: str = ""  # the record's chosen fields as JSON; empty if its source chooses none


@contextmanager
def skipping(
    source: JsonlSource | ParquetSource | ArrowSource | WarcSource, broken: list[str] | None
) -> Iterator[None]:
    """Note a broken file instead of raising, if the source says so and the reader counts them."""
    try:
        yield
    except BrokenFile as error:
        if source.on_broken == "stop" or broken is None:
            raise
        broken.append(str(error))


@contextmanager
def as_broken(item: File, kind: str) -> Iterator[None]:
    """Raise what Arrow says of a file that is not of its kind as BrokenFile."""
    try:
        yield
    except pa.ArrowInvalid as error:
        message = f"{item.place}: not readable as {kind} ({error}); download it again, or set on_broken: skip"
        raise BrokenFile(message) from error


def refuse_large(size: int, most: int, where: str) -> None:
    """Raises StageError if a document has more than `most` bytes."""
    if size > most:
        raise StageError(
            f"{where}: larger than max_document_mb = {most / 1e6:g} MB. Raise it (takes more memory), split the "
            "document, or remove it."
        )


def chosen_fields(record: Mapping[str, Any], names: Sequence[str]) -> str:
    """The fields of a record with these names that it has, as JSON. Values that JSON does not have are strings. Empty
    without names."""
    return json.dumps({name: record[name] for name in names if name in record}, default=str) if names else ""


def encoded(text: Any, where: str) -> bytes:
    """A document's bytes; None is an empty document. Raises StageError for other types."""
    if text is None:
        return b""
    if isinstance(text, bytes):
        return text
    if not isinstance(text, str):
        raise StageError(f"{where}: the text is a {type(text).__name__}; choose a text_field that holds text")
    return text.encode("utf-8", "surrogatepass")
