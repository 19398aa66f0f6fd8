"""Read the rows of a source one at a time, each with its location.

    for row in read(spec, folder): row.place, row.value

The value of an unreadable row is a RowError, and reading continues. A damaged file raises StageError.
"""

import inspect
import re
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa

from baton.infra.storage.address import File
from baton.tasks.core.job import StageError
from baton.tasks.data.documents import SPLITS, Split, read_documents
from baton.tasks.data.readers.arrow_rows import rows_of
from baton.tasks.data.readers.columnar import parquet_file
from baton.tasks.data.readers.hugging_face import rows_of_hugging_face, tables_of
from baton.tasks.data.readers.jsonl import text_of
from baton.tasks.rows.check import DECODER, RowError, lone_surrogate
from baton.tasks.rows.spec import HuggingFaceRows, RowsSpec
from baton.tasks.user_code.functions import Function
from baton.tasks.user_code.load_function import described

ESCAPED_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
BATCH = 64  # rows of Parquet in memory at a time
LARGEST_JSON_MB = 500  # limit of a .json file, which is read at once


@dataclass(frozen=True)
class SourceRow:
    place: str  # "chat.jsonl, line 7": the file below the source's folder
    value: Any  # the row, or a RowError if it is unreadable
    done: float = 0.0  # fraction of the source read so far; 0 if unknown
    split: Split | None = None  # split of the document that the row was made from


def read(spec: RowsSpec, folder: Path, corpus: Path | None = None) -> Iterator[SourceRow]:
    """Yield the source's first `limit` rows in a fixed order; for documents, those of each split. A function's
    files are written to `folder`, and `corpus` contains the documents it reads. Raises StageError, OSError."""
    if spec.path is not None:
        rows = _files(spec)
    elif spec.huggingface is not None:
        rows = _hugging_face(spec.huggingface, spec.limit)
    else:
        assert spec.function is not None  # guaranteed by problems(): one of the three is set
        arguments = {"seed": spec.seed, "limit": spec.limit, **spec.arguments}
        if spec.documents:
            return _document_rows(spec.function, folder, arguments, corpus, spec.limit, {*spec.arguments})
        rows = _function(spec.function, folder, arguments, {*spec.arguments})
    return islice(rows, spec.limit)


def _files(spec: RowsSpec) -> Iterator[SourceRow]:
    files = spec.files().files()
    total = sum(file.size for file in files) or 1
    before = 0
    for file in files:
        read = _parquet if file.name.endswith(".parquet") else _list if _is_list(file) else _lines
        for where, value, done in read(file, spec):
            yield SourceRow(f"{file.name}, {where}", value, min(1.0, (before + done) / total))
        before += file.size


def _lines(source: File, spec: RowsSpec) -> Iterator[tuple[str, Any, int]]:
    """Yield (place, value, bytes of the file read so far) of each non-blank line, decompressed by the file's suffix. At
    most `max_row_mb` of a line is held in memory."""
    most = spec.max_bytes()
    with source.open() as file:
        stream = text_of(file, source.name)
        number = 0
        try:
            while line := stream.readline(most + 2):  # the line ending doesn't count
                number += 1
                value: Any = None
                if len(line.rstrip(b"\r\n")) > most:
                    value = too_large(spec)
                    while line and not line.endswith(b"\n"):
                        line = stream.readline(1 << 20)
                elif line.strip():
                    value = _value(line.removeprefix(BOM_UTF8))
                else:
                    continue
                yield f"line {number}", value, file.tell()
        except (OSError, pa.ArrowException) as error:
            raise StageError(
                f"{source.place}, after line {number}: damaged or truncated ({error}); download it again"
            ) from error


def too_large(spec: RowsSpec) -> RowError:
    return RowError(f"larger than max_row_mb = {spec.max_row_mb:g} MB: raise it, split the row, or remove it")


def _value(line: bytes) -> Any:
    """Parse a line of JSON."""
    try:
        value = DECODER.decode(line.decode())
        lone = lone_surrogate(value) if ESCAPED_SURROGATE.search(line) else ""
        return RowError(lone) if lone else value
    except UnicodeDecodeError as error:
        if line.startswith((BOM_UTF16_LE, BOM_UTF16_BE)):
            return RowError("UTF-16, by its byte order mark; convert the file: iconv -f UTF-16 -t UTF-8")
        return RowError(f"not UTF-8 (byte {error.object[error.start]:#04x} at {error.start}); save the file as UTF-8")
    except (ValueError, RecursionError) as error:  # ValueError: also an integer of more digits than Python converts
        return _not_json(error)


def _not_json(error: Exception) -> RowError:
    if isinstance(error, RowError):
        return error
    if isinstance(error, RecursionError):
        return RowError("nested too deeply; a row is an object with columns")
    return RowError(f"not JSON ({error}); expected one JSON object per row")


def _is_list(source: File) -> bool:
    """Return whether a .json file is one list of rows; many have one row per line."""
    if not source.name.endswith(".json"):
        return False
    with source.open() as file:
        return file.read(4096).removeprefix(BOM_UTF8).lstrip().startswith(b"[")


def _list(source: File, spec: RowsSpec) -> Iterator[tuple[str, Any, int]]:
    """Yield the rows of a JSON list, which is read at once."""
    if source.size > LARGEST_JSON_MB * 1e6:
        name = source.name.rpartition("/")[2]
        raise StageError(
            f"{source.place}: a .json file is read as a whole, and this one is larger than {LARGEST_JSON_MB} MB. "
            f"Convert it to one row per line: jq -c '.[]' {name} > {name}l"
        )
    with source.open() as file:
        rows = _value(file.read().removeprefix(BOM_UTF8))
    if isinstance(rows, RowError):
        raise StageError(f"{source.place}: {rows}")
    for number, row in enumerate(rows, start=1):
        yield f"row {number}", row, 0


def _parquet(source: File, spec: RowsSpec) -> Iterator[tuple[str, Any, int]]:
    row, size = 0, source.size
    try:
        with parquet_file(source) as file:
            for batch in file.iter_batches(batch_size=BATCH):
                for value in rows_of(batch):
                    row += 1
                    yield f"row {row}", value, round(size * row / file.metadata.num_rows)
    except StageError as error:
        raise StageError(f"{source.place}: {error}") from error
    except (OSError, pa.ArrowException) as error:
        raise StageError(
            f"{source.place}, after row {row}: not readable as Parquet ({error}); download the file again"
        ) from error


def _hugging_face(dataset: HuggingFaceRows, limit: int | None) -> Iterator[SourceRow]:
    rows, count = rows_of_hugging_face(dataset.source())
    total = min(count or limit or 0, limit or count or 0)
    for number, row in enumerate(rows, start=1):
        place = f"{dataset.name}/{dataset.split}, row {number}"
        yield SourceRow(place, row, min(1.0, number / total) if total else 0.0)


def _document_rows(
    function: Function,
    folder: Path,
    arguments: dict[str, Any],
    corpus: Path | None,
    limit: int | None,
    required: Set[str],
) -> Iterator[SourceRow]:
    """Yield the rows made from each split's documents, at most `limit` of each split."""
    if corpus is None:
        raise StageError(f"{function.name}: `documents` needs a corpus; add `corpus:` to the recipe")
    for split in reversed(SPLITS):
        documents = (
            {"text": document.text, "source": document.source, "id": document.id}
            for document in read_documents(corpus, split)
        )
        for row in islice(_function(function, folder, arguments | {"documents": documents}, required), limit):
            yield replace(row, split=split)


def _function(source: Function, folder: Path, arguments: dict[str, Any], required: Set[str]) -> Iterator[SourceRow]:
    """Yield the rows of a user's function, which runs in this process, that of the engine. `required`: the names of the
    arguments that it must accept."""
    function = source.load(folder)
    limit = arguments["limit"] or 0
    number = 0
    parameters = inspect.signature(function).parameters
    accepts_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    if not accepts_any and (left := sorted(required - parameters.keys())):
        raise StageError(
            f"{source.name}: has no parameter {left[0]!r}, which `arguments` gives; it has {', '.join(parameters)}"
        )
    accepted = {
        name: value for name, value in arguments.items() if name in parameters or (accepts_any and name in required)
    }
    try:
        for number, row in enumerate(_given(function(**accepted)), start=1):
            yield SourceRow(f"{source.name}, row {number}", row, min(1.0, number / limit) if limit else 0.0)
    except StageError:
        raise
    except (Exception, SystemExit) as error:  # user code can raise anything
        raise StageError(f"{source.name}, after row {number}: {described(error, folder)}") from error


def _given(rows: Any) -> Iterator[Any]:
    """The rows that a user's function returns or yields, also in tables and datasets. A dictionary is a row as it is,
    since it does not show whether Arrow has filled in its nulls."""
    for given in [rows] if _tables(rows) is not None else rows:
        tables = _tables(given)
        yield from [given] if tables is None else (row for table in tables for row in rows_of(table))


def _tables(value: Any) -> Iterable[Any] | None:
    """The tables that a value consists of; None if it is something else."""
    if isinstance(value, pa.Table | pa.RecordBatch):
        return [value]
    if isinstance(value, pa.RecordBatchReader):
        return value  # type: ignore[no-any-return]  # an iterator of batches
    if type(value).__module__.startswith("datasets.") and hasattr(value, "iter"):  # without importing it
        return tables_of(value)
    return None
