"""Which tasks lm-eval has: `unknown(["gsm8k", "gms8k"])` is {"gms8k": ["gsm8k", …]}, with names like it.

Most tasks have a file of their name. Only where one has none is lm-eval itself asked, in a process of its own:
importing it and reading its 14,000 tasks takes some ten seconds.
"""

import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterable
from difflib import get_close_matches
from functools import cache
from pathlib import Path

ASK = "import json; from lm_eval.tasks import TaskManager; print(json.dumps(TaskManager().all_tasks))"
PATIENCE_S = 300.0


def unknown(names: Iterable[str]) -> dict[str, list[str]]:
    """Empty where lm-eval is not installed: then nothing is known of its tasks."""
    found = importlib.util.find_spec("lm_eval")
    if found is None or found.origin is None:
        return {}
    files = _files(Path(found.origin).parent / "tasks")
    doubtful = [name for name in names if name not in files]
    return {
        name: get_close_matches(name, all_tasks(), n=3)
        for name in doubtful
        if name not in all_tasks()  # a group, a tag, or one of many in a file
    }


@cache
def _files(folder: Path) -> frozenset[str]:
    return frozenset(path.stem.removeprefix("_") for path in folder.rglob("*.yaml"))


@cache
def all_tasks() -> tuple[str, ...]:
    """Tasks, groups and tags."""
    asked = subprocess.run(
        [sys.executable, "-c", ASK], check=True, timeout=PATIENCE_S, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    return tuple(json.loads(asked.stdout.splitlines()[-1]))
