"""Check a source before a run: its files by their names and sizes, and its first record."""

from collections.abc import Callable
from functools import partial
from typing import IO

import pyarrow as pa
import pyarrow.parquet as pq

from baton.infra.storage.address import File
from baton.tasks.core.job import StageError
from baton.tasks.core.spec import Problem
from baton.tasks.data.readers.columnar import arrow_reader
from baton.tasks.data.readers.jsonl import first_jsonl_fields, first_jsonl_record
from baton.tasks.data.source_spec import ArrowSource, JsonlSource, ParquetSource, Records, without, without_field

SEEN = 10  # files that are searched for a record, if broken ones are skipped


def missing(source: Records) -> list[Problem]:
    """The problems with the source on this machine."""
    return source.missing(partial(LOOKS[type(source)], source))


def _jsonl(source: JsonlSource, files: list[File]) -> list[Problem]:
    skip = source.on_broken == "skip"
    faults = []
    for first in [file for file in files if file.size][: SEEN if skip else 1]:
        try:
            record = first_jsonl_record(first, source.max_bytes(), skip)
            break
        except StageError as error:
            faults.append(str(error))
    else:
        return [Problem("path", source.path, "; ".join(faults))]
    fields = first_jsonl_fields(first, source.max_bytes()) if source.metadata else []
    return without_field(source.text_field, list(record), first.place) + without(source.metadata, fields, first.place)


def _parquet(source: ParquetSource, files: list[File]) -> list[Problem]:
    return _columns(source, files, "Parquet", lambda file: list(pq.read_schema(file).names))


def _arrow(source: ArrowSource, files: list[File]) -> list[Problem]:
    return _columns(source, files, "Arrow", lambda file: list(arrow_reader(file).schema.names))


def _columns(source: Records, files: list[File], kind: str, columns: Callable[[IO[bytes]], list[str]]) -> list[Problem]:
    """The problems with the first file, or with the first readable one if broken ones are skipped."""
    faults = []
    for first in files[: SEEN if source.on_broken == "skip" else 1]:
        try:
            with first.open() as opened:
                names = columns(opened)
        except (OSError, pa.ArrowInvalid) as error:
            faults.append(f"{first.place}: {error}")
        else:
            if twice := [name for name in (source.text_field, *source.metadata) if names.count(name) > 1]:
                return [Problem("path", source.path, f"one column {twice[0]!r}; {first.place} has several")]
            problems = without_field(source.text_field, names, first.place)
            return problems + without(source.metadata, names, first.place)
    return [Problem("path", source.path, f"{kind} files; {'; '.join(faults)}")]


LOOKS: dict[type[Records], Callable[..., list[Problem]]] = {
    JsonlSource: _jsonl,
    ParquetSource: _parquet,
    ArrowSource: _arrow,
}
