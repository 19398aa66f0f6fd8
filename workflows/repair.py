"""Repair a recipe with errors, so that the rest of it can be checked too.

Each wrong field gets a valid value, in two ways. A problem that both repaired recipes have in the same words does not
depend on the wrong fields.
"""

import copy
from collections.abc import Iterator
from typing import Annotated, Any, get_args, get_origin

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from workflows.recipe_error import locate, models_in

VALUES: tuple[Any, ...] = (
    None,
    2,
    64,
    1,
    300,
    0.25,
    0.4,
    1e-3,
    "a",
    "b",
    True,
    False,
    [],
    [1],
    {},
    "a:b",  # a function's name
)  # most fields may have two of them


def repaired(raw: Any, errors: ValidationError, model: type[BaseModel], way: int) -> Any:
    """`raw` without its unknown fields, and with valid values in the wrong ones. `way`: 0 or 1."""
    whole = copy.deepcopy(raw)
    for error in errors.errors(include_url=False, include_context=False, include_input=False):
        location = error["loc"]
        while location:
            path, parent = locate(location, model, raw)
            *parents, last = path.split(".")
            holder = _holder(whole, parents)
            if isinstance(holder, dict) and error["type"] == "extra_forbidden":
                holder.pop(last, None)
                break
            known = isinstance(holder, dict) and parent and last in parent.model_fields
            if known and parent and (values := _values(parent.model_fields[last])):
                holder[last] = values[way % len(values)]
                break
            location = location[:-1]  # an item of a list, or a field that no value here suits: what it is in
    return whole


def _holder(whole: Any, parents: list[str]) -> Any:
    """The dictionary or list that holds a field; None: it was removed."""
    for parent in parents:
        if isinstance(whole, list) and parent.isdigit() and int(parent) < len(whole):
            whole = whole[int(parent)]
        else:
            whole = whole.get(parent) if isinstance(whole, dict) else None
    return whole


def _values(field: FieldInfo) -> list[Any]:
    """Two valid values of a field, if there are any; a section's are never null."""
    if (models := models_in(field.annotation)) and get_origin(field.annotation) not in (list, dict):
        fields = {name: (info, _values(info)) for name, info in models[0].model_fields.items()}
        required = {name: values[:1] for name, (info, values) in fields.items() if info.is_required()}
        if not all(required.values()):
            return []
        plain = {name: values[-1] for name, (info, values) in fields.items() if info.default is not None and values}
        return [{name: value for name, (value,) in required.items()}, plain]
    default = [] if field.is_required() else [field.get_default(call_default_factory=True)]
    return [*default, *(value for value in _allowed(field) if value not in default)][:2]


def _allowed(field: FieldInfo) -> Iterator[Any]:
    annotated: Any = Annotated[field.annotation, *field.metadata, None]  # None: there may be no constraint
    kind: TypeAdapter[Any] = TypeAdapter(annotated)
    for value in _candidates(field.annotation):
        try:
            yield kind.validate_python(value, strict=True)
        except ValidationError:
            continue


def _candidates(annotation: Any) -> Iterator[Any]:
    """The choices of a Literal, then values of any type; for a list also lists of one of them."""
    yield from getattr(annotation, "__args__", ())
    yield from VALUES
    if get_origin(annotation) is list:
        yield from ([value] for value in _candidates(get_args(annotation)[0]))
