"""Call a function in a separate process, which runs a user's code or loads libraries that its parent must not load.

    answer = ask("baton.tasks.rows.first", spec.model_dump_json(), limit_s=60)

and in that module

    if __name__ == "__main__":
        reply(work)             # work(request, folder) returns a JSON value

The process and all that it has started end after the answer, at the time limit, and when the parent ends. Its output
is shown only if it fails.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from baton import SEARCH_PATH
from baton.infra.process.logs import end_of
from baton.infra.process.parent_watchdog import end_with_launcher
from baton.infra.process.process_group import start_group, stop_group
from baton.infra.tracking.redact import redact_text

REQUEST, ANSWER, LOG, WORK = "request", "answer.json", "log.txt", "work"  # in the process's folder
SHOWN_CHARACTERS = 500  # of its output


class ChildFailed(Exception):
    """The process has ended without an answer; the message says how."""


class ChildTooSlow(ChildFailed):
    """The process was stopped at its time limit."""


def ask(module: str, request: str, limit_s: float) -> Any:
    """Return the answer of `python -m module FOLDER`. Raises ChildFailed."""
    path = os.pathsep.join(filter(None, [*SEARCH_PATH, os.environ.get("PYTHONPATH")]))
    with TemporaryDirectory(prefix="baton-") as name:
        folder = Path(name)
        (folder / REQUEST).write_text(request)
        with (folder / LOG).open("wb") as log:
            command = [sys.executable, "-P", "-m", module, name]
            process = start_group(command, log, os.environ | {"PYTHONPATH": path})
            try:
                process.wait(limit_s)
            except subprocess.TimeoutExpired as error:
                raise ChildTooSlow(f"its process takes longer than {limit_s:g} s") from error
            finally:
                stop_group(process)
        if process.returncode or not (folder / ANSWER).exists():
            output = redact_text(end_of(folder / LOG).decode(errors="replace").strip())[-SHOWN_CHARACTERS:]
            without = "" if process.returncode else " and without an answer"
            raise ChildFailed(f"its process exited with code {process.returncode}{without}: {output}")
        return json.loads((folder / ANSWER).read_text())


def reply(work: Callable[[str, Path], Any]) -> None:
    """In the child process, call `work` with an empty folder and no standard input, and write its answer."""
    folder = Path(sys.argv[1])
    parent = os.dup(0)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    end_with_launcher(0.0, parent)
    (folder / WORK).mkdir()
    answer = work((folder / REQUEST).read_text(), folder / WORK)
    (folder / ANSWER).write_text(json.dumps(answer))
