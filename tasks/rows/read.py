"""Read the rows of a source one at a time, each with the place where a person finds it.

    for found in read(spec, folder): found.place, found.value

A row that cannot be read has a Wrong for its value, and the reading goes on after it. A file that is damaged ends it:
StageError.
"""

import inspect
import io
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from infra.placement.address import File
from tasks.data.documents import SPLITS, Split, read_documents
from tasks.data.sources import open_hugging_face
from tasks.functions import Function
from tasks.job import StageError
from tasks.load_function import described
from tasks.rows.check import Wrong
from tasks.rows.spec import HuggingFaceRows, RowsSpec
from tasks.rows.stored import Row

BATCH = 64  # rows of Parquet in memory at a time
LARGEST_JSON_MB = 500  # of a .json file, which is read as a whole


@dataclass(frozen=True)
class Found:
    place: str  # "chat.jsonl, line 7": the file below the source's folder
    value: Any  # what stands there, or a Wrong that says why it cannot be read
    done: float = 0.0  # how much of the source has been read, 0 … 1; 0 where nobody can know
    split: Split | None = None  # of the document that the row was made of


def read(spec: RowsSpec, folder: Path, corpus: Path | None = None) -> Iterator[Found]:
    """The source's rows in a fixed order, the first `limit` of them. `folder` is where a function's files are
    written; `corpus` has the documents that it reads. Raises StageError, OSError."""
    if spec.path is not None:
        found = _files(spec)
    elif spec.huggingface is not None:
        found = _hugging_face(spec.huggingface, spec.limit)
    else:
        assert spec.function is not None  # by problems(): one of the three
        known = {"seed": spec.seed, "limit": spec.limit, **spec.arguments}
        if spec.documents:
            found = _of_documents(spec.function, folder, known, corpus)
        else:
            found = _function(spec.function, folder, known)
    return islice(found, spec.limit)


def _files(spec: RowsSpec) -> Iterator[Found]:
    files = spec.files().files()
    total = sum(each.size for each in files) or 1
    before = 0
    for each in files:
        read = _parquet if each.name.endswith(".parquet") else _list if _is_list(each) else _lines
        for where, value, done in read(each, spec):
            yield Found(f"{each.name}, {where}", value, min(1.0, (before + done) / total))
        before += each.size


def _lines(source: File, spec: RowsSpec) -> Iterator[tuple[str, Any, int]]:
    """(place, value, bytes of the file that were read) of each line with anything on it, decompressed as the
    name says. Of a line that is too large no more is held."""
    most = spec.max_bytes()
    compression = {"gz": "gzip", "zst": "zstd"}.get(source.name.rpartition(".")[2])
    with source.open() as file:
        stream: IO[bytes] = file
        if compression is not None:
            stream = io.BufferedReader(pa.CompressedInputStream(pa.PythonFile(file), compression), 1 << 18)
        number = 0
        try:
            while line := stream.readline(most + 2):  # the end of the line does not count
                number += 1
                value: Any = None
                if len(line.rstrip(b"\r\n")) > most:
                    value = too_large(spec)
                    while line and not line.endswith(b"\n"):
                        line = stream.readline(1 << 20)
                elif line.strip():
                    value = _value(line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line)
                else:
                    continue
                yield f"line {number}", value, file.tell()
        except (OSError, pa.ArrowException) as error:
            raise StageError(
                f"{source.place}, after line {number}: damaged or cut short ({error}); download it again"
            ) from error


def too_large(spec: RowsSpec) -> Wrong:
    return Wrong(f"larger than max_row_mb = {spec.max_row_mb:g} MB: raise it, split the row, or leave it out")


def _value(line: bytes) -> Any:
    """A line's JSON value, or what is wrong with it."""
    try:
        return _DECODER.decode(line.decode())
    except UnicodeDecodeError as error:
        return Wrong(f"not UTF-8 (byte {error.object[error.start]:#04x} at {error.start}); save the file as UTF-8")
    except (ValueError, RecursionError) as error:  # ValueError: also an integer of more digits than Python converts
        return _not_json(error)


def _not_json(error: Exception) -> Wrong:
    if isinstance(error, Wrong):
        return error
    if isinstance(error, RecursionError):
        return Wrong("nested too deeply; a row is an object with columns")
    return Wrong(f"not JSON ({error}); one JSON object a row is wanted")


def _once(pairs: list[tuple[str, Any]]) -> Row:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise Wrong(f"column {next(name for name in names if names.count(name) > 1)!r} stands twice in one object")
    return found


def _no_constant(name: str) -> Any:
    raise Wrong(f"{name} is not JSON; null is the word for no number")


_DECODER = json.JSONDecoder(object_pairs_hook=_once, parse_constant=_no_constant)


def _is_list(source: File) -> bool:
    """Whether a .json file is one list of rows; many are a row a line."""
    if not source.name.endswith(".json"):
        return False
    with source.open() as file:
        return file.read(4096).removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"[")


def _list(source: File, spec: RowsSpec) -> Iterator[tuple[str, Any, int]]:
    """The rows of a JSON list, which is read as a whole."""
    if source.size > LARGEST_JSON_MB * 1e6:
        name = source.name.rpartition("/")[2]
        raise StageError(
            f"{source.place}: a .json file is read as a whole, and this one is larger than {LARGEST_JSON_MB} MB. Make "
            f"a row a line of it: jq -c '.[]' {name} > {name}l"
        )
    with source.open() as file:
        rows = _value(file.read().removeprefix(b"\xef\xbb\xbf"))
    if isinstance(rows, Wrong):
        raise StageError(f"{source.place}: {rows}")
    for number, row in enumerate(rows, start=1):
        yield f"row {number}", row, 0


def _parquet(source: File, spec: RowsSpec) -> Iterator[tuple[str, Any, int]]:
    row, size = 0, source.size
    try:
        with source.open() as opened, pq.ParquetFile(opened) as file:
            for batch in file.iter_batches(batch_size=BATCH):
                for value in _batch(batch):
                    row += 1
                    yield f"row {row}", value, round(size * row / file.metadata.num_rows)
    except (OSError, pa.ArrowException) as error:
        raise StageError(
            f"{source.place}, after row {row}: not readable as Parquet ({error}); get the file anew"
        ) from error


def _batch(batch: pa.RecordBatch) -> Iterable[Any]:
    try:
        found: list[Any] = batch.to_pylist()
        return found
    except UnicodeDecodeError:  # Parquet does not check that its strings are UTF-8
        if batch.num_rows == 1:
            return [Wrong("not UTF-8; write the file anew with text that is")]
        return [value for row in range(batch.num_rows) for value in _batch(batch.slice(row, 1))]


def _hugging_face(asked: HuggingFaceRows, limit: int | None) -> Iterator[Found]:
    rows, count = open_hugging_face(asked.source())
    total = min(count or limit or 0, limit or count or 0)
    for number, row in enumerate(rows, start=1):
        yield Found(f"{asked.name}/{asked.split}, row {number}", row, min(1.0, number / total) if total else 0.0)


def _of_documents(asked: Function, folder: Path, known: dict[str, Any], corpus: Path | None) -> Iterator[Found]:
    """The rows of each split's documents; held-out ones first, so that a limit takes from the others."""
    if corpus is None:
        raise StageError(f"{asked.name}: `documents` needs a corpus; add `corpus:` to the recipe")
    for split in reversed(SPLITS):
        documents = (
            {"text": each.text, "source": each.source, "id": each.id} for each in read_documents(corpus, split)
        )
        for found in _function(asked, folder, known | {"documents": documents}):
            yield replace(found, split=split)


def _function(asked: Function, folder: Path, known: dict[str, Any]) -> Iterator[Found]:
    """What a function of the user's gives. It runs in this process, which is the engine's own."""
    function = asked.load(folder)
    limit = known["limit"] or 0
    number = 0
    try:
        for number, row in enumerate(function(**_parameters(function, known)), start=1):
            yield Found(f"{asked.name}, row {number}", row, min(1.0, number / limit) if limit else 0.0)
    except StageError:
        raise
    except Exception as error:  # whatever it is, it is the user's to correct
        raise StageError(f"{asked.name}, after row {number}: {described(error, folder)}") from error


def _parameters(function: Callable[..., Any], known: dict[str, Any]) -> dict[str, Any]:
    return {name: known[name] for name in inspect.signature(function).parameters if name in known}
