"""Read the first rows: those of files here, those of a user's function or of `datasets` in a subprocess.

    python -m tasks.rows.first FOLDER        stdin: a RowsSpec as JSON; stdout: a First as JSON, or {"error": …}

`first_rows(spec)` starts it. The function's own output goes to stderr.
"""

import json
import os
import subprocess
import sys
from dataclasses import asdict
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from infra.placement.address import digest_of
from infra.placement.storage import StorageError
from tasks.job import StageError
from tasks.rows.rows import MOST_SEEN, First, peek
from tasks.rows.spec import RowsSpec
from tasks.spec import Problem

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
    """Raises StageError if the function fails, TooSlow if it takes too long."""
    return _first_rows(
        spec.as_found().model_copy(update={"limit": min(spec.limit or MOST_SEEN, MOST_SEEN)}).model_dump_json()
    )


@cache  # a recipe is read several times in one run
def _first_rows(spec: str) -> First:
    command = [sys.executable, "-P", "-m", "tasks.rows.first"]
    path = os.pathsep.join(filter(None, [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH")]))
    with TemporaryDirectory(prefix="baton-rows-") as folder:
        try:
            process = subprocess.run(
                [*command, folder],
                input=spec,
                env=os.environ | {"PYTHONPATH": path},
                timeout=TIMEOUT_S,
                check=False,
                capture_output=True,
                text=True,
            )
        except subprocess.TimeoutExpired as error:
            raise TooSlow(f"it yielded fewer than {MOST_SEEN} rows in {TIMEOUT_S:g} s") from error
    if process.returncode:
        raise StageError(f"its process exited with code {process.returncode}: {process.stderr.strip()[-500:]}")
    result = json.loads(process.stdout)
    if "error" in result:
        raise StageError(result["error"])
    return First(**result)


def main(folder: Path) -> None:
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    spec = RowsSpec.model_validate_json(sys.stdin.read())
    try:
        result = asdict(peek(spec, folder))
    except StageError as error:
        result = {"error": str(error)}
    json.dump(result, output)
    output.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
