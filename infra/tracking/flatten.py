"""Flatten nested specs to MLflow's parameters."""

import json
from typing import Any


def flatten(value: Any, prefix: str = "") -> dict[str, str]:
    """Map dotted names to strings: {"model": {"heads": 4}} becomes {"model.heads": "4"}. Lists become JSON."""
    if isinstance(value, dict) and (value or not prefix):
        found: dict[str, str] = {}
        for key, item in value.items():
            found |= flatten(item, f"{prefix}.{key}" if prefix else str(key))
        return found
    return {prefix: value if isinstance(value, str) else json.dumps(value)}
