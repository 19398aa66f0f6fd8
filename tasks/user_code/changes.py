"""Describe how a function differs from an earlier version of it."""

import ast

from baton.infra.text import shown
from baton.tasks.user_code.functions import Function
from baton.tasks.user_code.plain_definitions import DEFINITIONS
from baton.tasks.user_code.syntax import first_difference, form
from baton.tasks.user_code.used import Statement, used

LONGEST = 80  # characters of a line


def change(old: Function, new: Function) -> str:
    """Describe the first difference between two functions, such as `sums.py, line 12, in right: return 1.0`."""
    if old.attribute != new.attribute:
        return f"{new.attribute}, before {old.attribute}"
    if new.source is None or old.source is None:
        return f"{new.version or 'source files'}, before {old.version or 'source files'}"
    try:
        before = {_label(each): each for each in used(old.source, old.place, old.attribute).statements}
        after = {_label(each): each for each in used(new.source, new.place, new.attribute).statements}
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        before, after = {}, {}
    for (_, name), statement in after.items():
        found = next((each for (_, label), each in before.items() if label == name), None)
        if found is None:
            return f"{_line(new, statement.file, statement.node.lineno)} is new"
        if form(found.node) != form(statement.node):
            place = _line(new, statement.file, first_difference(found.node, statement.node))
            return f"{place} (in {name})" if isinstance(statement.node, DEFINITIONS) else place
    names = {label for _, label in after}
    for (file, label), _ in before.items():
        if label not in names:
            return f"{file}: {shown(label, LONGEST)} is left out"
    return _by_text(old.source, new)


def _label(statement: Statement) -> tuple[str, str]:
    """The file and the name of a definition, or the first line of another statement."""
    node = statement.node
    name = node.name if isinstance(node, DEFINITIONS) else ", ".join(sorted(statement.binds))
    return statement.file, name or ast.unparse(node).partition("\n")[0]


def _by_text(old: dict[str, str], new: Function) -> str:
    """Describe the first line that differs, of functions whose text counts."""
    for file, text in (new.source or {}).items():
        before = old.get(file, "").splitlines()
        for number, line in enumerate(text.splitlines()):
            if before[number : number + 1] != [line]:
                return _line(new, file, number + 1)
    return f"the name or the end of {new.place}"


def _line(function: Function, file: str, number: int) -> str:
    lines = (function.source or {}).get(file, "").splitlines()
    text = lines[number - 1].strip() if number <= len(lines) else ""
    return f"{file}, line {number}: {shown(text, LONGEST)}"
