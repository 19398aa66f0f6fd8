"""Separate the source text of the user's functions from a stage's other settings.

A spec has the text of each function's file and of those that it imports (tasks/user_code/functions.py), as
`source: {"reward.py": "…"}`. As parameters they are `….source."reward.py"`, or part of a list's JSON.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

from baton.infra.lineage.facts import json_or

SHOWN = 100  # characters of each end of a value that was cut
_FILE = re.compile(r'.*\.source\."(.+\.py)"')  # quoted, as flatten.py does


def split(params: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """(settings, code) of a stage's parameters: code is text by file name; settings have the files' names instead."""
    settings: dict[str, str] = {}
    code: dict[str, str] = {}
    for name, value in params.items():
        if match := _FILE.fullmatch(name):
            code[match[1]] = value
        elif '"source"' in value:
            content = json_or(value)
            settings[name] = _shortened(value) if content is None else json.dumps(_without_code(content, code))
        else:
            settings[name] = value
    return settings, code


def _without_code(value: Any, code: dict[str, str]) -> Any:
    if isinstance(value, dict):
        source = value.get("source")
        if isinstance(source, dict) and all(str(name).endswith(".py") for name in source):
            code |= {name: str(text) for name, text in source.items()}
            return value | {"source": sorted(source)}
        return {name: _without_code(item, code) for name, item in value.items()}
    return [_without_code(item, code) for item in value] if isinstance(value, list) else value


def _shortened(text: str) -> str:
    """The beginning of a value that was cut, and the end with its digest (infra/tracking/push.py)."""
    return f"{text[:SHOWN]} … {text[-SHOWN:]}" if len(text) > 2 * SHOWN else text
