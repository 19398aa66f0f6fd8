"""A form of Python's syntax trees that is the same in every version of Python, and for every way to format a text."""

import ast
from typing import Any

# Fields of a node that its place determines, or that have no meaning: `ctx`, type comments, and the u of u"…"
_WITHOUT_MEANING = {"ctx", "kind", "type_comment", "type_ignores"}


def form(part: Any) -> Any:
    """Return a syntax tree, or a part of one, as JSON types, without positions. Fields that are unset are left out,
    since versions of Python differ in those that they have. Raises RecursionError."""
    if isinstance(part, ast.AST):
        fields = {name: value for name, value in ast.iter_fields(part) if name not in _WITHOUT_MEANING}
        return [type(part).__name__, {name: form(value) for name, value in fields.items() if value not in (None, [])}]
    if isinstance(part, list):
        return [form(item) for item in part]
    # `repr` of a long int raises an error, and that of a text depends on the version of Unicode
    return [type(part).__name__, hex(part) if type(part) is int else ascii(part)]


def first_difference(old: ast.AST | None, new: ast.AST) -> int:
    """Return the line of the first and innermost statement or expression of `new` that differs from `old`."""
    line = getattr(new, "lineno", 1)
    if old is None or type(old) is not type(new):
        return int(line)
    for (_, before), (_, after) in zip(ast.iter_fields(old), ast.iter_fields(new), strict=True):
        pairs = [(before, after)]
        if isinstance(before, list) and isinstance(after, list):
            pairs = [*zip(before, after, strict=False), *((None, more) for more in after[len(before) :])]
        for one, other in pairs:
            if isinstance(other, ast.AST) and form(one) != form(other):
                return max(line, first_difference(one if isinstance(one, ast.AST) else None, other))
    return int(line)
