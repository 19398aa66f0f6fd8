"""Flatten nested specs to MLflow's parameters."""

import json
import re
from typing import Any

_NAME = re.compile(r'"(?:[^"\\]|\\.)*"(?=\.|$)|[^.]+')


def flatten(value: Any) -> dict[str, str]:
    """Map dotted names to strings: {"model": {"heads": 4}} becomes {"model.heads": "4"}. Lists become JSON. A name with
    a dot is in quotes: {"model": {"a.b": 4}} becomes {'model."a.b"': "4"}."""
    return {name: item if isinstance(item, str) else json.dumps(item) for name, item in leaves(value).items()}


def leaves(value: Any, prefix: str = "") -> dict[str, Any]:
    """The values by their dotted names, as they are."""
    if isinstance(value, dict) and (value or not prefix):
        flat: dict[str, Any] = {}
        for key, item in value.items():
            name = json.dumps(key, ensure_ascii=False) if "." in str(key) else str(key)
            flat |= leaves(item, f"{prefix}.{name}" if prefix else name)
        return flat
    return {prefix: value}


def names_of(parameter: str) -> list[str]:
    """The names of a flattened parameter: `model."a.b"` is ["model", "a.b"]."""
    return [
        json.loads(name) if name.startswith('"') and name[1:].endswith('"') else name
        for name in _NAME.findall(parameter)
    ]
