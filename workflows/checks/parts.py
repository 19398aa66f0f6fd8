"""Walk through everything in a recipe."""

from collections.abc import Iterator
from typing import Any

from baton.tasks.core.spec import Spec


def specs_in(value: Any, path: str = "") -> Iterator[tuple[str, Spec]]:
    """(path, spec) of every spec, including nested ones."""
    if isinstance(value, Spec):
        yield path, value
    for name, item in items(value):
        yield from specs_in(item, f"{path}.{name}" if path else name)


def items(value: Any) -> Iterator[tuple[str, Any]]:
    """(field, key or index; value) of a model, a dictionary or a list."""
    if hasattr(value, "model_fields_set"):  # a pydantic model
        yield from value
    elif isinstance(value, dict):
        yield from ((str(name), item) for name, item in value.items())
    elif isinstance(value, list | tuple):
        yield from ((str(number), item) for number, item in enumerate(value))
