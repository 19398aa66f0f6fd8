"""Read the first rows of files in this process, or those of a user's function or of `datasets` in a subprocess.

`python -m baton.tasks.rows.first` is the subprocess (infra/process/child.py): it is given a RowsSpec and returns a
First or an error.
"""

from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

from baton.infra.process.child import ChildFailed, ChildTooSlow, ask, reply
from baton.infra.storage.address import digest_of
from baton.infra.storage.buckets import StorageError
from baton.tasks.core.job import StageError
from baton.tasks.core.spec import Problem
from baton.tasks.rows.rows import First, peek
from baton.tasks.rows.spec import MOST_SEEN, RowsSpec

TIMEOUT_S = 60.0


class TooSlow(StageError):
    """The rows didn't arrive in time, so they were not checked."""


def first_of_files(spec: RowsSpec) -> First | None:
    """The first rows of readable files; None for other sources. Raises StageError."""
    return None if spec.path is None or digest_of(spec.path) else peek(spec, Path())


def faults(spec: RowsSpec) -> list[Problem]:
    """Problems of the first rows of files."""
    try:
        first = first_of_files(spec)
    except (StageError, StorageError) as error:
        return [Problem("path", spec.path, f"files with readable rows: {error}")]
    if first is None or not first.faults or (first.rows and spec.faulty == "drop"):
        return []
    return [Problem("path", spec.path, f"rows without faults, or `faulty: drop`. {'; '.join(first.faults[:3])}")]


def first_rows(spec: RowsSpec) -> First:
    """The first rows, read in a subprocess. Raises StageError if the function fails, TooSlow if it takes too long."""
    return _first_rows(
        spec.pinned().model_copy(update={"limit": min(spec.limit or MOST_SEEN, MOST_SEEN)}).model_dump_json()
    )


@cache  # a recipe is read several times in one run
def _first_rows(spec: str) -> First:
    try:
        result = ask("baton.tasks.rows.first", spec, TIMEOUT_S)
    except ChildTooSlow as error:
        raise TooSlow(f"it yielded fewer than {MOST_SEEN} rows in {TIMEOUT_S:g} s") from error
    except ChildFailed as error:
        raise StageError(str(error)) from error
    if "error" in result:
        raise StageError(result["error"])
    return First(**result)


def _answer(spec: str, folder: Path) -> dict[str, Any]:
    try:
        return asdict(peek(RowsSpec.model_validate_json(spec), folder))
    except StageError as error:
        return {"error": str(error)}


if __name__ == "__main__":
    reply(_answer)
