"""Read JSON strictly, where Python's `json` silently changes or accepts invalid content.

strict_json(content)                          a file's content
json.loads(text, object_pairs_hook=unique)    for an object with a key that occurs twice, `json` keeps the last value
"""

import json
import re
from typing import Any

_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")  # an escape of half a pair, or of a pair


def strict_json(content: bytes) -> Any:
    """Return the value of JSON in UTF-8. Raises ValueError, also for other encodings, a byte order mark, a key that
    occurs twice, NaN and half of a surrogate pair. Infinity, which JSON lacks, is accepted: the configs of some model
    families have it."""
    text = content.decode("utf-8")
    value = json.loads(text, object_pairs_hook=unique, parse_constant=_no_nan)
    if _SURROGATE.search(text):
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"it has half of a surrogate pair, {error.object[error.start]!a}") from error
    return value


def _no_nan(name: str) -> float:
    if name == "NaN":
        raise ValueError("NaN is not JSON")
    return float(name)


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of these keys and values. Raises ValueError if a key occurs twice."""
    content = dict(pairs)
    if len(content) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(name for name in names if names.count(name) > 1)!r} occurs twice in one object")
    return content
