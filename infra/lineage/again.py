"""How to have it again: the code, the command and the recipe, from what was recorded."""

import json
import shlex
from pathlib import Path
from typing import Any

RECIPE = "recipe.json"


def code(tags: dict[str, str]) -> dict[str, str]:
    """{"commit", "dirty", "diff"}, as far as they are known."""
    names = {"commit": "mlflow.source.git.commit", "dirty": "baton.code.dirty", "diff": "baton.code.diff"}
    return {name: tags[key] for name, key in names.items() if tags.get(key)}


def commands(tags: dict[str, str], execution: str) -> list[str]:
    """What a person types to have an execution again; `{base}` stands for the page's own address."""
    words = _words(tags.get("mlflow.source.name", ""))
    if not words:
        return []
    words[0] = Path(words[0]).name
    for number, word in enumerate(words[:-1]):
        if word == "--recipe":
            words[number + 1] = RECIPE
    of, lines = code(tags), []
    if of.get("commit", "unknown") not in ("unknown", "none"):
        lines.append(f"git checkout {of['commit']}")
    if "diff" in of:
        lines.append(f"# and the changes that were not committed then; their digest is {of['diff'][:12]}")
    if RECIPE in words:
        lines.append(f"curl -fsS -o {RECIPE} {{base}}/executions/{execution}/{RECIPE}")
    return [*lines, shlex.join(words)]


def recipe(params: dict[str, str]) -> dict[str, Any]:
    """MLflow's flat parameters as the recipe that they were. What is no JSON is text."""
    found: dict[str, Any] = {}
    for key, value in params.items():
        *parents, last = key.split(".")
        at = found
        for parent in parents:
            inner = at.setdefault(parent, {})
            at = inner if isinstance(inner, dict) else {}  # a name with a dot of its own: it is lost, the rest is not
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
    except ValueError:  # a quote is open: written before commands were quoted
        return command.split()
