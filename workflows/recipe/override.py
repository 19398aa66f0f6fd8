"""Replace the value at a path of a recipe, through specs, lists and dictionaries."""

from typing import Any


def replaced(part: Any, path: list[str], value: Any) -> Any:
    """A copy of `part` with `value` at a path such as ["pretrain", "pod"]."""
    if not path:
        return value
    first, *rest = path
    if isinstance(part, list):
        number = int(first)
        return [*part[:number], replaced(part[number], rest, value), *part[number + 1 :]]
    if isinstance(part, dict):
        return part | {first: replaced(part[first], rest, value)}
    return part.model_copy(update={first: replaced(getattr(part, first), rest, value)})
