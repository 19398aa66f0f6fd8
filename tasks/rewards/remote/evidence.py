"""The classes that tests are about, by what the tests' own text does with them.

A program may define a class where its tests mean a function, so its capital letter decides nothing. A name stands for a
class if the tests construct it without arguments, ask for `isinstance` of it, use its attributes, or use what they
construct in a way in which no single type of data can be used. `Shout("a").find("A")` is no such use, since texts have
`find`; `Stack([1]).push(2)` is one.
"""

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator

# builtin functions that use their first argument, and by which method
_ITERATING = ("all", "any", "enumerate", "list", "map", "max", "min", "set", "sorted", "sum", "tuple", "zip")
_CALLING = ("abs", "bool", "bytes", "complex", "float", "hash", "int", "iter", "len", "next", "reversed", "round")
_USES = dict.fromkeys(_ITERATING, "__iter__") | {name: f"__{name}__" for name in _CALLING}
_CHECKS = ("isinstance", "issubclass", "assertIsInstance", "assertNotIsInstance")
_SET = "="  # an attribute is assigned, which data does not allow


def classes_under_test(trees: list[ast.Module], types: Iterable[frozenset[str]]) -> tuple[set[str], set[str]]:
    """The names of these classes, and of what the tests use on objects that they construct. `types`: the names of the
    attributes of each type of data."""
    nodes = [node for tree in trees for node in ast.walk(tree)]
    uses: dict[str, set[str]] = {}
    classes, variables = set(), defaultdict(set)
    for node in nodes:
        if (name := _constructed(node)) and isinstance(node, ast.Call):
            uses.setdefault(name, set())
            if not (node.args or node.keywords):
                classes.add(name)
        for target, value in _assigned(node):
            if (name := _constructed(value)) and (variable := _last(target)):
                variables[variable].add(name)
        if isinstance(node, ast.Call) and _last(node.func) in _CHECKS and len(node.args) == 2:
            kinds = node.args[1].elts if isinstance(node.args[1], ast.Tuple) else [node.args[1]]
            classes |= {name for kind in kinds if _is_capital(name := _last(kind))}
    of_class: defaultdict[str, set[str]] = defaultdict(set)
    for node in nodes:
        for value, use in _used(node):
            made = {name} if (name := _constructed(value)) else variables.get(_last(value), ())
            for each in made:
                uses[each].add(use)
            if not made and _is_capital(_last(value)):
                of_class[_last(value)].add(use)
    known = list(types)
    for names, own in ((uses, False), (of_class, True)):
        for name, used in names.items():
            as_data = bool(used) and any(used <= each for each in known)
            if not as_data or (own and not name.isupper()):
                classes.add(name)
    return classes, {use for name in classes for use in uses.get(name, ())}


class Rewritten(ast.NodeTransformer):
    """Tests whose `a is b` and discarded method calls go through two functions, `__same__` and `__discard__`, since one
    object of the program may have several representations here, and since a result that nobody sees proves nothing."""

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        if len(node.ops) > 1 or not isinstance(node.ops[0], ast.Is | ast.IsNot):
            return node
        call = ast.Call(ast.Name("__same__", ast.Load()), [node.left, node.comparators[0]], [])
        same: ast.expr = ast.UnaryOp(ast.Not(), call) if isinstance(node.ops[0], ast.IsNot) else call
        return ast.fix_missing_locations(ast.copy_location(same, node))

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.value, ast.Call) and isinstance(node.value.func, ast.Attribute):
            function = ast.copy_location(ast.Name("__discard__", ast.Load()), node)
            node.value = ast.copy_location(
                ast.Call(function, [node.value.func, *node.value.args], node.value.keywords), node
            )
        return node


def _last(node: ast.AST) -> str:
    """The last part of a dotted name."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _is_capital(name: str) -> bool:
    return name.lstrip("_")[:1].isupper()


def _constructed(node: ast.AST) -> str:
    """The name of the class, if the node is the call of a name that may be one's."""
    return name if isinstance(node, ast.Call) and _is_capital(name := _last(node.func)) else ""


def _assigned(node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
    if isinstance(node, ast.Assign):
        for target in node.targets:
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                yield from zip(target.elts, node.value.elts, strict=False)
            yield target, node.value
    elif isinstance(node, ast.AnnAssign | ast.NamedExpr) and node.value:
        yield node.target, node.value
    elif isinstance(node, ast.withitem) and node.optional_vars:
        yield node.optional_vars, node.context_expr


def _used(node: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    """What a node uses, and by which attribute or method."""
    match node:
        case ast.Attribute():
            yield node.value, node.attr if isinstance(node.ctx, ast.Load) else _SET
        case ast.Subscript():
            yield node.value, "__getitem__"
        case ast.For() | ast.comprehension():
            yield node.iter, "__iter__"
        case ast.Starred():
            yield node.value, "__iter__"
        case ast.Compare():
            for operator, value in zip(node.ops, node.comparators, strict=True):
                if isinstance(operator, ast.In | ast.NotIn):
                    yield value, "__contains__"
        case ast.Call():
            if not _constructed(node):
                yield node.func, "__call__"
            if (use := _USES.get(_last(node.func))) and len(node.args) == 1:
                yield node.args[0], use
