"""Reproduction commands: the code, the command and the recipe that were recorded."""

import json
import shlex
from pathlib import Path
from typing import Any

RECIPE = "recipe.json"


def code(tags: dict[str, str]) -> dict[str, str]:
    """{"commit", "dirty", "diff"}, those that are known."""
    names = {"commit": "mlflow.source.git.commit", "dirty": "baton.code.dirty", "diff": "baton.code.diff"}
    return {name: tags[key] for name, key in names.items() if tags.get(key)}


def commands(tags: dict[str, str], execution: str) -> list[str]:
    """Shell commands that repeat an execution; `{base}` stands for the address of these pages."""
    words = _words(tags.get("mlflow.source.name", ""))
    if not words:
        return []
    words[0] = Path(words[0]).name
    for number, word in enumerate(words):
        if word.startswith("--recipe="):
            words[number : number + 1] = ["--recipe", RECIPE]
        elif number and words[number - 1] == "--recipe":
            words[number] = RECIPE
    version, lines = code(tags), []
    if version.get("commit", "unknown") not in ("unknown", "none"):
        lines.append(f"git checkout {version['commit']}")
    if "diff" in version:
        lines.append(f"# plus uncommitted changes, not recorded (digest {version['diff'][:12]})")
    lines.append(". .venv/bin/activate")
    if RECIPE in words:
        lines.append(f"curl -fsS -o {RECIPE} {{base}}/executions/{execution}/{RECIPE}")
    return [*lines, shlex.join(words)]


def recipe(params: dict[str, str]) -> dict[str, Any]:
    """A nested recipe from MLflow's flat parameters; a value that is not JSON is text."""
    found: dict[str, Any] = {}
    for key, value in params.items():
        *parents, last = key.split(".")
        at = found
        for parent in parents:
            inner = at.setdefault(parent, {})
            at = inner if isinstance(inner, dict) else {}  # a name that itself has a dot: only this field is lost
        at[last] = _value(value)
    return found


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _words(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError:  # an open quote: recorded before commands were quoted
        return command.split()
