"""What does not count as a statement's worth of work."""

import ast

_DOES_SOMETHING = (ast.Call, ast.Await, ast.Yield, ast.YieldFrom, ast.NamedExpr)


def is_trivial(statement: ast.stmt) -> bool:
    """Whether a statement says nothing: `pass`; `return` or `return None`; an expression in which
    nothing is called, awaited, yielded or assigned (`...`, a docstring, a lone name); and a block,
    whatever its head, that holds only such statements (`if x: pass`, `def f(self): ...`)."""
    match statement:
        case ast.Pass() | ast.Return(value=None) | ast.Return(value=ast.Constant(value=None)):
            return True
        case ast.Expr(value=value):
            return not any(isinstance(node, _DOES_SOMETHING) for node in ast.walk(value))
        case ast.Match(cases=cases):
            return all(is_trivial(inner) for case in cases for inner in case.body)
        case _:
            inner = _blocks(statement)
            return bool(inner) and all(is_trivial(each) for each in inner)


def _blocks(statement: ast.stmt) -> list[ast.stmt]:
    """The statements directly in a compound statement's blocks; none for a simple statement."""
    found: list[ast.stmt] = []
    for name in ("body", "orelse", "finalbody"):
        found += getattr(statement, name, [])
    for handler in getattr(statement, "handlers", []):
        found += handler.body
    return found
