"""Check that values are unchanged by JSON, the format in which specs and facts are stored and sent."""

import json
import re
from typing import Annotated, Any

from pydantic import AfterValidator

DEEPEST = 100  # levels of nesting
_SURROGATE = re.compile("[\ud800-\udfff]")


def not_json(value: Any, place: str = "", depth: int = 0) -> str:
    """Return the place and description of a part of a value that JSON would change, lose or refuse, or ""."""
    at = f"{place}: " if place else ""
    if depth > DEEPEST:
        return f"{place[:80]}: more than {DEEPEST} levels"
    if isinstance(value, str) and _SURROGATE.search(value):
        return f"{at}{value!a:.80}, which has half of a surrogate pair"
    if isinstance(value, dict):
        for name, inner in value.items():
            if not isinstance(name, str) or _SURROGATE.search(name):
                return f"{at}the name {name!a:.80}, which is not text"
            if found := not_json(inner, f"{place}.{name}".removeprefix("."), depth + 1):
                return found
        return ""
    if isinstance(value, list):
        places = (
            not_json(inner, f"{place}.{number}".removeprefix("."), depth + 1) for number, inner in enumerate(value)
        )
        return next(filter(None, places), "")
    try:
        same = json.loads(json.dumps(value, allow_nan=False)) == value
    except (TypeError, ValueError):  # another type, NaN, infinity, or an integer with too many digits
        same = False
    return "" if same else f"{at}{shown(value)} ({type(value).__name__})"


def shown(value: Any, most: int = 80) -> str:
    """Return a value as text for a message, cut to `most` characters."""
    try:
        text = ascii(value)
    except ValueError:  # an integer of more than 4,300 digits
        text = "a number of too many digits"
    return text[:most]


def _checked(value: dict[str, Any]) -> dict[str, Any]:
    if found := not_json(value):
        raise ValueError(
            f"values of JSON: finite numbers, text, true, false, null, lists, and mappings with text keys; {found}"
        )
    return value


# A user's own fields
JsonObject = Annotated[dict[str, Any], AfterValidator(_checked)]
