"""Read the rows of Arrow tables, with only the fields that each row was given.

Arrow gives all structs of a column the same fields, and null to those that a row lacks: a call gets the arguments of
the other calls, and a tool's schema the parameters of the other tools. Neither Parquet nor `datasets` records which
nulls the rows had before. So a field of a struct that is null is left out, at every depth, even if it was null on
purpose. The content of a message that calls tools is the exception: it stays null, as in OpenAI's format, where the key
is always present. A null in a list, a map or JSON (Arrow's type arrow.json, `datasets`' Json) stays, and so does a null
in a column.

Maps are objects, if their keys are distinct. Dates, decimals, bytes and the like have Python's types.
"""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

from baton.infra.storage.unique_keys import unique
from baton.tasks.core.job import StageError
from baton.tasks.data.json_values import Unreadable

CONTENT = "content"  # field of a message
Convert = Callable[[Any], Any]


def rows_of(table: pa.Table | pa.RecordBatch) -> Iterator[dict[str, Any]]:
    """The rows of a table. A value that cannot be read is Unreadable. Raises StageError."""
    if twice := [name for name in table.schema.names if table.schema.names.count(name) > 1]:
        raise StageError(f"there are several columns {twice[0]!r}: give them different names")
    columns = [_values(table.column(number)) for number in range(table.num_columns)]
    for values in zip(*columns, strict=True):
        yield dict(zip(table.schema.names, values, strict=True))


def _values(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    convert = _converter(column.type)
    try:
        values = column.to_pylist()
    except (ValueError, OverflowError, pa.ArrowException):  # ValueError: not UTF-8, or beyond what Python's dates hold
        values = [_value(item) for item in column]
    return values if convert is None else [_each(convert, value) for value in values]


def _value(item: pa.Scalar) -> Any:
    try:
        return item.as_py()
    except UnicodeDecodeError:
        return Unreadable("not UTF-8; rewrite the file with valid text")
    except (ValueError, OverflowError, pa.ArrowException) as error:
        return Unreadable(str(error))


def _each(convert: Convert, value: Any) -> Any:
    return value if value is None or isinstance(value, Unreadable) else convert(value)


def _converter(kind: pa.DataType) -> Convert | None:
    """The function that converts a value of this type from `to_pylist` to JSON's form; None if it has that form."""
    if isinstance(kind, pa.BaseExtensionType):
        return _parsed if kind.extension_name == "arrow.json" else _converter(kind.storage_type)
    if pa.types.is_struct(kind):
        fields = {kind.field(number).name: _converter(kind.field(number).type) for number in range(kind.num_fields)}
        return lambda value: _struct(value, fields)
    if pa.types.is_map(kind):
        of_item = _converter(kind.item_type)
        return lambda value: _map(value, of_item)
    if pa.types.is_dictionary(kind):
        return _converter(kind.value_type)
    if any(is_kind(kind) for is_kind in _LISTS):
        of_element = _converter(kind.value_type)
        return of_element and (lambda value: [_each(of_element, inner) for inner in value])
    return None


_LISTS = (
    pa.types.is_list,
    pa.types.is_large_list,
    pa.types.is_fixed_size_list,
    pa.types.is_list_view,
    pa.types.is_large_list_view,
)


def _struct(value: dict[str, Any], fields: dict[str, Convert | None]) -> dict[str, Any]:
    kept = {CONTENT} if value.get("tool_calls") else set()
    return {
        name: convert(value[name]) if convert and value[name] is not None else value[name]
        for name, convert in fields.items()
        if value[name] is not None or name in kept
    }


def _map(value: list[tuple[Any, Any]], of_item: Convert | None) -> Any:
    items = [(key, _each(of_item, item) if of_item else item) for key, item in value]
    mapping = dict(items)
    return mapping if len(mapping) == len(items) else [list(item) for item in items]


def _parsed(value: str) -> Any:
    try:
        return json.loads(value, object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        return Unreadable(f"not JSON ({error})")
