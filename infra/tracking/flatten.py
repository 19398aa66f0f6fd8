"""Nested specs as MLflow's flat parameters."""

import json
from typing import Any


def flatten(value: Any, prefix: str = "") -> dict[str, str]:
    """Dotted names to text: {"model": {"heads": 4}} becomes {"model.heads": "4"}. Lists stay whole, as JSON."""
    if isinstance(value, dict) and (value or not prefix):
        found: dict[str, str] = {}
        for key, item in value.items():
            found |= flatten(item, f"{prefix}.{key}" if prefix else str(key))
        return found
    return {prefix: value if isinstance(value, str) else json.dumps(value)}
