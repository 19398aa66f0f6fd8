"""Analyze Python text without running it: its syntax tree, its names, its trivial statements."""

import ast
import warnings
from collections.abc import Iterable, Iterator
from math import inf

Function = ast.FunctionDef | ast.AsyncFunctionDef
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda, *_COMPREHENSIONS)
_DOES_SOMETHING = (ast.Call, ast.Await, ast.Yield, ast.YieldFrom, ast.NamedExpr)


def parse(text: str) -> ast.Module | None:
    """The syntax tree, or None for text that Python's parser rejects: invalid syntax, null bytes, lone surrogates,
    nesting deeper than its stack."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # invalid escapes such as "\d"
        try:
            return ast.parse(text)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None


def bound_names(nodes: Iterable[ast.AST], before: float = inf) -> Iterator[str]:
    """Yield the names bound by these nodes in their own scope: targets of all kinds, imports (`*` for a star import),
    definitions, `except … as`, patterns. Excluded are names bound inside a nested function, class or comprehension, and
    nodes that begin at line `before` or later."""
    for node in nodes:
        if getattr(node, "lineno", 0) >= before:
            continue
        match node:
            case ast.Name(id=name, ctx=ast.Store()):
                yield name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.alias(name=name, asname=asname):
                yield asname or name.partition(".")[0]
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                yield name
            case ast.MatchMapping(rest=str(name)):
                yield name
        if not isinstance(node, _SCOPES):
            yield from bound_names(ast.iter_child_nodes(node), before)


def module_names(tree: ast.Module) -> frozenset[str]:
    """Names that a module binds at its top level, and through `global` in its functions."""
    declared = (name for node in ast.walk(tree) if isinstance(node, ast.Global) for name in node.names)
    return frozenset(bound_names(tree.body)).union(declared)


def argument_names(arguments: ast.arguments) -> Iterator[str]:
    for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
        yield argument.arg
    for extra in (arguments.vararg, arguments.kwarg):
        if extra:
            yield extra.arg


def context_names(function: Function, line: int) -> set[str]:
    """The arguments of `function` and the names it binds before `line`; those of a nested function that contains `line`
    too."""
    names = {*argument_names(function.args), *bound_names(function.body, line)}
    for node in ast.walk(function):
        if node is not function and isinstance(node, Function) and node.lineno < line <= (node.end_lineno or 0):
            names.update(argument_names(node.args), bound_names(node.body, line))
    return names


def loaded_names(node: ast.AST) -> set[str]:
    """Free names of a statement: every loaded name (including the root of an attribute and the target of `x += …`)
    except those bound by its own lambdas, comprehensions and nested functions."""
    match node:
        case ast.Name(id=name, ctx=ast.Load()):
            return {name}
        case ast.AugAssign(target=ast.Name(id=name), value=value):
            return {name} | loaded_names(value)
        case ast.Lambda(args=arguments, body=body):
            return _loaded([arguments]) | (loaded_names(body) - {*argument_names(arguments)})
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            local = {*argument_names(node.args), *bound_names(node.body)}
            return _loaded([*node.decorator_list, node.args]) | (_loaded(node.body) - local)
        case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
            local = {*bound_names(each.target for each in node.generators)}
            return loaded_names(node.generators[0].iter) | (_loaded(ast.iter_child_nodes(node)) - local)
        case _:
            return _loaded(ast.iter_child_nodes(node))


def _loaded(nodes: Iterable[ast.AST]) -> set[str]:
    return set().union(*(loaded_names(node) for node in nodes))


def is_trivial(statement: ast.stmt) -> bool:
    """Whether a statement is trivial: `pass`; `return` or `return None`; an expression without a call, await, yield or
    assignment (`...`, a docstring, a lone name); or a compound statement with only trivial ones (`if x: pass`,
    `def f(self): ...`)."""
    match statement:
        case ast.Pass() | ast.Return(value=None) | ast.Return(value=ast.Constant(value=None)):
            return True
        case ast.Expr(value=value):
            return not any(isinstance(node, _DOES_SOMETHING) for node in ast.walk(value))
        case ast.Match(cases=cases):
            return all(is_trivial(inner) for case in cases for inner in case.body)
        case _:
            inner = _blocks(statement)
            return bool(inner) and all(map(is_trivial, inner))


def _blocks(statement: ast.stmt) -> list[ast.stmt]:
    """The statements directly in a compound statement's blocks; none for a simple statement."""
    statements: list[ast.stmt] = []
    for name in ("body", "orelse", "finalbody"):
        statements += getattr(statement, name, [])
    for handler in getattr(statement, "handlers", []):
        statements += handler.body
    return statements
