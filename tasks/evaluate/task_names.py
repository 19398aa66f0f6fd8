"""Find names that lm-eval has no task of: `unknown(["gsm8k", "gms8k"])` is {"gms8k": ["gsm8k", …]}, with similar names.

Most tasks have a file of the same name. Only for the others is lm-eval queried, in a subprocess: importing it and
reading its 14,000 tasks takes about ten seconds.
"""

import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterable
from difflib import get_close_matches
from functools import cache
from pathlib import Path

QUERY = "import json; from lm_eval.tasks import TaskManager; print(json.dumps(TaskManager().all_tasks))"
TIMEOUT_S = 300.0


def unknown(names: Iterable[str]) -> dict[str, list[str]]:
    """Unknown names with similar existing ones. Empty if lm-eval is not installed: then its tasks are not known."""
    found = importlib.util.find_spec("lm_eval")
    if found is None or found.origin is None:
        return {}
    files = _files(Path(found.origin).parent / "tasks")
    without_file = [name for name in names if name not in files]  # a group, a tag, one of many in a file, or unknown
    return {name: get_close_matches(name, all_tasks(), n=3) for name in without_file if name not in all_tasks()}


@cache
def _files(folder: Path) -> frozenset[str]:
    return frozenset(path.stem.removeprefix("_") for path in folder.rglob("*.yaml"))


@cache
def all_tasks() -> tuple[str, ...]:
    """Names of all tasks, groups and tags."""
    query = subprocess.run(
        [sys.executable, "-c", QUERY], check=True, timeout=TIMEOUT_S, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    return tuple(json.loads(query.stdout.splitlines()[-1]))
