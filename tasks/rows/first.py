"""The first rows of a set that a function of the user's makes, or that `datasets` reads, in a process of their own.

    python -m tasks.rows.first FOLDER        stdin: a RowsSpec as JSON; stdout: a First as JSON, or {"error": …}

`first_rows(spec)` starts it. What the function prints goes to stderr.
"""

import json
import os
import subprocess
import sys
from dataclasses import asdict
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from tasks.job import StageError
from tasks.rows.rows import MOST_SEEN, First, peek
from tasks.rows.spec import RowsSpec

PATIENCE_S = 60.0


class TooSlow(StageError):
    """The rows were not there in time: nothing is known of them."""


def first_rows(spec: RowsSpec) -> First:
    """Raises StageError when the function fails, TooSlow when it takes too long."""
    return _first_rows(
        spec.as_found().model_copy(update={"limit": min(spec.limit or MOST_SEEN, MOST_SEEN)}).model_dump_json()
    )


@cache  # a recipe is read several times in one run
def _first_rows(spec: str) -> First:
    words = [sys.executable, "-P", "-m", "tasks.rows.first"]
    path = os.pathsep.join(filter(None, [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH")]))
    with TemporaryDirectory(prefix="baton-rows-") as folder:
        try:
            ended = subprocess.run(
                [*words, folder],
                input=spec,
                env=os.environ | {"PYTHONPATH": path},
                timeout=PATIENCE_S,
                check=False,
                capture_output=True,
                text=True,
            )
        except subprocess.TimeoutExpired as error:
            raise TooSlow(f"it gave no {MOST_SEEN} rows in {PATIENCE_S:g} s") from error
    if ended.returncode:
        raise StageError(f"its process ended with {ended.returncode}: {ended.stderr.strip()[-500:]}")
    found = json.loads(ended.stdout)
    if "error" in found:
        raise StageError(found["error"])
    return First(**found)


def main(folder: Path) -> None:
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    spec = RowsSpec.model_validate_json(sys.stdin.read())
    try:
        found = asdict(peek(spec, folder))
    except StageError as error:
        found = {"error": str(error)}
    json.dump(found, answer)
    answer.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
