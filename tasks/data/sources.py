"""Read the eight kinds of source, one document at a time."""

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory

from baton.tasks.core.job import StageError
from baton.tasks.data.partitions import Piece, uncut
from baton.tasks.data.readers.columnar import read_arrow, read_parquet
from baton.tasks.data.readers.hugging_face import read_hugging_face
from baton.tasks.data.readers.jsonl import read_jsonl
from baton.tasks.data.readers.raw import Broken, Raw, encoded, refuse_large
from baton.tasks.data.source_spec import (
    LARGEST_MB,
    AnySource,
    ArrowSource,
    FilesSource,
    FunctionSource,
    HuggingFaceSource,
    JsonlSource,
    ParquetSource,
    StdlibSource,
    WarcSource,
)
from baton.tasks.user_code.load_function import described


def read_source(
    source: AnySource,
    broken: Broken | None = None,
    pieces: Sequence[Piece] | None = None,
    functions: Path | None = None,
) -> Iterator[Raw]:
    """Read the source's documents in a fixed order, or those of some `pieces` of it. With `on_broken: skip`, broken
    records and files are skipped and added to `broken`, if given. `functions`: this process's folder of users'
    functions, if it loads several. Raises StageError, OSError."""
    match source:
        case HuggingFaceSource():
            return read_hugging_face(source)
        case FunctionSource():
            return _read_function(source, functions)
    chosen = uncut(source.files()) if pieces is None else pieces
    match source:
        case StdlibSource():
            return _read_files(chosen, int(LARGEST_MB * 1e6))
        case FilesSource():
            return _read_files(chosen, source.max_bytes())
        case JsonlSource():
            return read_jsonl(source, chosen, broken)
        case ParquetSource():
            return read_parquet(source, chosen, broken)
        case ArrowSource():
            return read_arrow(source, chosen, broken)
        case WarcSource():
            from baton.tasks.data.readers.warc import read_warc  # native parsers, which other sources do not need

            return read_warc(source, chosen, broken)


def _read_function(source: FunctionSource, functions: Path | None) -> Iterator[Raw]:
    """The documents of a user's function, which runs in this process."""
    name, number = source.function.name, 0
    with nullcontext(functions) if functions else TemporaryDirectory() as folder:
        function = source.function.load(Path(folder))
        try:
            for number, text in enumerate(function(**source.arguments), start=1):
                where = f"{source.function.attribute}#{number}"
                content = encoded(text, where)
                refuse_large(len(content), source.max_bytes(), where)
                yield Raw(where, content, 0.0)
        except StageError:
            raise
        except (Exception, SystemExit) as error:  # user code can raise anything
            raise StageError(f"{name}, after document {number}: {described(error, Path(folder))}") from error


def _read_files(pieces: Sequence[Piece], most: int) -> Iterator[Raw]:
    total = sum(piece.size for piece in pieces) or 1
    done = 0
    for piece in pieces:
        with piece.file.open() as file:
            text = file.read(most + 1)
        refuse_large(len(text), most, piece.file.place)
        done += len(text)
        yield Raw(piece.file.name, text, min(1.0, done / total))
