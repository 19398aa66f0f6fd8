"""Refuse JSON objects in which a key occurs twice, of which Python's `json` silently takes the last.

json.loads(text, object_pairs_hook=unique)
"""

from typing import Any


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of these keys and values. Raises ValueError if a key occurs twice."""
    content = dict(pairs)
    if len(content) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(name for name in names if names.count(name) > 1)!r} occurs twice in one object")
    return content
