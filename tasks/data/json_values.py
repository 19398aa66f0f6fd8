"""Convert values that JSON cannot represent, in a row's other columns and in documents' metadata, by the same rules.

dates and times             text in ISO 8601
durations                   seconds
decimals, UUIDs             text
NumPy's numbers and arrays  numbers and lists
mappings, tuples            objects and lists
NaN, infinities, NaT        null
other values                NotJson: bytes, images, objects of a library, half of a surrogate pair
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

TO_NULL = " -> null"  # the end of a change that loses the value
ROUNDED = "more digits than a float of 64 bits has -> rounded"
DEEPEST = 100  # levels of nesting; code that reads rows recurses
SURROGATE = re.compile("[\ud800-\udfff]")


class NotJson(ValueError):
    """JSON cannot represent the value; the message says what it is."""


class HalfPair(NotJson):
    """Text that was cut within a character."""


class Rounded(float):
    """A number that its file has with more digits than a float of 64 bits keeps."""


@dataclass(frozen=True)
class Unreadable:
    """Stands for a value that cannot be read from its file."""

    why: str


def json_value(value: Any) -> tuple[Any, set[str]]:
    """A value as JSON can represent it, and the changes. Raises NotJson."""
    changes: set[str] = set()
    return _converted(value, changes, 0), changes


def _converted(value: Any, changes: set[str], depth: int) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        if SURROGATE.search(value):
            raise HalfPair("half of a surrogate pair")
        return str(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        if math.isfinite(value):
            if isinstance(value, Rounded):
                changes.add(ROUNDED)
            return float(value)
        changes.add(f"NaN or infinite{TO_NULL}")
        return None
    if depth > DEEPEST:
        raise NotJson(f"more than {DEEPEST} levels of nesting")
    if isinstance(value, Mapping):
        pairs = value.items()
        return {_converted(str(name), changes, 0): _converted(inner, changes, depth + 1) for name, inner in pairs}
    if isinstance(value, list | tuple):
        return [_converted(inner, changes, depth + 1) for inner in value]
    if isinstance(value, Unreadable):
        raise NotJson(value.why)
    if isinstance(value, date | time | timedelta | Decimal | UUID):  # a datetime is a date
        changes.add(f"{kind_of(value)} -> {'seconds' if isinstance(value, timedelta) else 'text'}")
        if value != value:
            return None
        if isinstance(value, timedelta):
            return value.total_seconds()
        return str(value) if isinstance(value, Decimal | UUID) else value.isoformat()
    if hasattr(value, "dtype") and hasattr(value, "tolist") and (plain := value.tolist()) is not value:  # NumPy's
        return _converted(plain, changes, depth + 1)
    raise NotJson(kind_of(value))


def copied(value: Any, depth: int = 0) -> Any:
    """Copy objects and lists, at every depth."""
    if depth > DEEPEST:
        return value
    if type(value) is dict:
        return {name: copied(inner, depth + 1) for name, inner in value.items()}
    return [copied(inner, depth + 1) for inner in value] if type(value) is list else value


def kind_of(value: Any) -> str:
    """The name of a value's type, for messages: bytes, PIL.Image.Image."""
    module = type(value).__module__
    return type(value).__qualname__ if module == "builtins" else f"{module}.{type(value).__qualname__}"
