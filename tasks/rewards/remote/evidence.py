"""Find the classes that tests are about, by their use in the tests' own text.

A program may define a class where its tests mean a function, so a capital letter decides nothing. A name stands for a
class if the tests construct it without arguments, use it in `isinstance`, use its attributes, or use an object that
they construct in a way in which no single type of data can be used. `Shout("a").find("A")` is no such use, since texts
have `find`; `Stack([1]).push(2)` is one. A use counts only if nothing else can be meant: it is unknown what is used if
a variable also has another value, or if the object is an element of a list.
"""

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

# Builtin functions that use their only argument, and the method that they call
_ITERATING = ("all", "any", "enumerate", "list", "max", "min", "set", "sorted", "sum", "tuple")
_CALLING = ("abs", "bool", "iter", "len", "next", "reversed", "round")
_USES = dict.fromkeys(_ITERATING, "__iter__") | {name: f"__{name}__" for name in _CALLING}
_CONTAINERS = ("enumerate", "filter", "list", "map", "reversed", "set", "sorted", "tuple", "zip")  # return one
_CHECKS = ("isinstance", "issubclass", "assertIsInstance", "assertNotIsInstance")
# Attributes of types of data that objects have as well, and whose values decide nothing
_VALUES = {"name", "owner", "parent", "start", "stop", "step", "year", "month", "day", "days", "hour", "minute"}
_SYMMETRIC = ("assertEqual", "assertNotEqual", "assertListEqual", "assertTupleEqual", "assertDictEqual")
_SET = "="  # the assignment of an attribute, which data does not allow
_OTHER = ""  # in place of a class's name, for anything else
_PASSES = 3  # over the assignments, so that classes reach variables that are assigned from others
_FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef
Variables = dict[str, set[str]]  # the classes of the objects that a variable may be or contain


class Evidence:
    """Uses of classes in tests. `classes`: names of the classes under test, each with the attributes that the tests use
    on objects that they construct."""

    def __init__(self, trees: list[ast.Module], types: Iterable[frozenset[str]]) -> None:
        """Read the tests' syntax trees. `types`: the names of the attributes of each type of data."""
        self._sole: defaultdict[str, set[str]] = defaultdict(set)  # attributes used on an object of a class
        self._perhaps: defaultdict[str, set[str]] = defaultdict(set)  # on a value that may be or contain one
        self._of_class: defaultdict[str, set[str]] = defaultdict(set)
        self._makers: dict[str, str] = {}  # functions of the tests that return an object of a class
        nodes = [node for tree in trees for node in ast.walk(tree)]
        self._constructed = {name for node in nodes if (name := _constructed(node))}
        classes = {name for node in nodes for name in _checked(node)}
        if self._constructed or any(_is_capital(_last(node)) for node in nodes):
            self._makers = {node.name: self._returned(node) for node in nodes if isinstance(node, _FUNCTION)}
            variables: Variables = {}
            for tree in trees:
                variables = self._read(tree, variables)
        known = list(types)
        data = frozenset().union(*known)
        for name in self._constructed:
            sole = self._sole[name]
            if not (any(sole <= each for each in known) if sole else self._perhaps[name] & data - _VALUES):
                classes.add(name)
        for name, used in self._of_class.items():
            if not name.isupper() or not any(used <= each for each in known):
                classes.add(name)
        self.classes = {name: self._sole[name] for name in classes}

    def _read(self, tree: ast.Module, outer: Variables) -> Variables:
        """Record the used attributes, and return the variables of the module."""
        functions, rest = _functions(tree)
        shared = self._variables(ast.walk(tree), outer)
        attributes = {_last(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute | _FUNCTION)}
        module = outer | {name: found for name, found in shared.items() if name in attributes}
        module |= self._variables(rest, module)
        self._note(rest, module)
        for function in functions:
            inside = list(ast.walk(function))
            self._note(inside, module | self._variables(inside, module))
        return module

    def _note(self, nodes: list[ast.AST], variables: Variables) -> None:
        for node in nodes:
            for value, use in _used(node):
                name = self._made(value)
                found = {name} if name else variables.get(_last(value), set())
                if len(found) == 1 and _OTHER not in found:
                    self._sole[next(iter(found))].add(use)
                elif not _is_container(value):
                    for each in self._contained(value, variables):
                        self._perhaps[each].add(use)
                    if isinstance(node, ast.Attribute) and _is_capital(_last(value)) and not use.startswith("__"):
                        self._of_class[_last(value)].add(use)

    def _variables(self, nodes: Iterable[ast.AST], outer: Variables) -> Variables:
        """Return the possible classes of the variables that the nodes assign. A parameter may be any object that the
        tests construct."""
        own: Variables = {}
        nodes = list(nodes)
        for again in range(_PASSES):
            known = outer | own
            for node in nodes:
                for target, value in _assigned(node):
                    if (name := _last(target)) and (made := self._made(value)):
                        own.setdefault(name, set()).add(made)
                    else:
                        for each in [name] if name else _names(target):
                            own.setdefault(each, set()).update({*self._contained(value, known), _OTHER})
                if again and isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                    inside = {each for value in _arguments(node) for each in self._contained(value, known)}
                    for each in _names(node.func.value) if inside else ():
                        if not own.get(each, set()) - {_OTHER}:  # a list or the like, not an object under test
                            own.setdefault(each, set()).update({*inside, _OTHER})
                elif isinstance(node, _FUNCTION) and not self._makers.get(node.name):
                    own.setdefault(node.name, set()).update({*self._contained(node, known), _OTHER})
                elif isinstance(node, ast.arg) and node.arg not in ("self", "cls"):
                    own.setdefault(node.arg, set()).update({*self._constructed, _OTHER})
        return own

    def _contained(self, node: ast.AST, variables: Variables) -> set[str]:
        """Return the classes of the objects that the value of an expression may be or contain."""
        parts = list(ast.walk(node))
        return {name for part in parts if (name := self._made(part))} | {
            each for part in parts for each in variables.get(_last(part), ()) if each != _OTHER
        }

    def _made(self, node: ast.AST) -> str:
        """Return the name of the class of the object that a call constructs, or "" if it constructs none."""
        return _constructed(node) or (self._makers.get(_last(node.func), "") if isinstance(node, ast.Call) else "")

    def _returned(self, function: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
        """Return the only class whose objects a function of the tests returns, or ""."""
        inside = list(ast.walk(function))
        variables = self._variables(inside, {})
        values = [node.value for node in inside if isinstance(node, ast.Return | ast.Yield) and node.value]
        found = [{name} if (name := _constructed(each)) else variables.get(_last(each), {_OTHER}) for each in values]
        (only, *more) = set().union(*found) or {_OTHER}
        return only if not more else ""


def rewritten(tree: ast.Module) -> ast.Module:
    """Rewrite tests so that `a is b` and discarded method calls go through two functions, `__same__` and `__discard__`,
    since an object of the program may have several representations here, and an unused result proves nothing."""
    for node in reversed(list(ast.walk(tree))):  # children first, without recursion: a sum may have 1,000 terms
        for name, value in ast.iter_fields(node):
            if isinstance(value, list):
                value[:] = [_identity(each) for each in value]
            else:
                setattr(node, name, _identity(value))
        match node:
            case ast.Compare(left, [ast.Eq() | ast.NotEq()], [right]) if _is_expected(left) and not _is_expected(right):
                node.left, node.comparators = right, [left]  # the program must answer before it sees the expected value
            case ast.Call(ast.Attribute(_, name), [left, right, *_]) if name.startswith("assert"):
                if name in _SYMMETRIC and _is_expected(left) and not _is_expected(right):
                    node.args[:2] = right, left
        match node:
            case ast.Expr(ast.Call(ast.Attribute()) as call):
                function = ast.copy_location(ast.Name("__discard__", ast.Load()), call)
                call.args, call.func = [call.func, *call.args], function
    return tree


def _is_expected(node: ast.AST) -> bool:
    """Return whether an expression constructs an object or a container of objects."""
    if isinstance(node, ast.List | ast.Tuple | ast.Set):
        return any(map(_is_expected, node.elts))
    return bool(_constructed(node)) or (isinstance(node, ast.Dict) and any(map(_is_expected, node.values)))


def _identity(node: Any) -> Any:
    match node:
        case ast.Compare(left, [ast.Is() | ast.IsNot() as operator], [right]):
            function = ast.copy_location(ast.Name("__same__", ast.Load()), node)
            call = ast.copy_location(ast.Call(function, [left, right], []), node)
            opposite = isinstance(operator, ast.IsNot)
            return ast.copy_location(ast.UnaryOp(ast.copy_location(ast.Not(), node), call), node) if opposite else call
    return node


def _functions(tree: ast.Module) -> tuple[list[ast.AST], list[ast.AST]]:
    """Return the outermost functions of a module, and the nodes that are in no function."""
    functions: list[ast.AST] = []
    rest: list[ast.AST] = []
    todo: list[ast.AST] = [tree]
    while todo:
        node = todo.pop()
        if isinstance(node, _FUNCTION):
            functions.append(node)
        else:
            rest.append(node)
            todo += ast.iter_child_nodes(node)
    return functions, rest


def _arguments(node: ast.Call) -> list[ast.expr]:
    return [*node.args, *(keyword.value for keyword in node.keywords)]


def _names(node: ast.AST) -> set[str]:
    return {name for part in ast.walk(node) if (name := _last(part))}


def _last(node: ast.AST) -> str:
    """Return the last part of a dotted name, or a function's name."""
    match node:
        case ast.Attribute():
            return node.attr
        case ast.Name():
            return node.id
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            return node.name
    return ""


def _is_capital(name: str) -> bool:
    return name.lstrip("_")[:1].isupper()


def _is_container(node: ast.AST) -> bool:
    """Return whether a use of a value is that of a list or the like, whatever it contains."""
    literal = isinstance(node, ast.List | ast.Tuple | ast.Set | ast.Dict | ast.ListComp | ast.GeneratorExp)
    return literal or (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _CONTAINERS)


def _constructed(node: ast.AST) -> str:
    """Return the name of the class if the node is a call of a name that may be a class's, or ""."""
    return name if isinstance(node, ast.Call) and _is_capital(name := _last(node.func)) else ""


def _checked(node: ast.AST) -> set[str]:
    """Return the classes that a node constructs without arguments or uses in `isinstance`."""
    if not isinstance(node, ast.Call):
        return set()
    if (name := _constructed(node)) and not _arguments(node):
        return {name}
    if _last(node.func) not in _CHECKS or len(node.args) != 2:
        return set()
    kinds = node.args[1].elts if isinstance(node.args[1], ast.Tuple) else [node.args[1]]
    return {name for kind in kinds if _is_capital(name := _last(kind))}


def _assigned(node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
    match node:
        case ast.Assign(targets, value):
            for target in targets:
                if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
                    yield from zip(target.elts, value.elts, strict=False)
                else:
                    yield target, value
        case ast.AnnAssign(target, _, value) | ast.NamedExpr(target, value) if value:
            yield target, value
        case ast.AugAssign(target, _, value):
            yield target, value
        case ast.withitem(value, target) if target:
            yield target, value
        case ast.For(target, value) | ast.AsyncFor(target, value) | ast.comprehension(target, value):
            yield target, ast.Tuple([value])
        case ast.arguments():
            for default in (*node.defaults, *node.kw_defaults):
                if default:
                    for argument in (*node.posonlyargs, *node.args, *node.kwonlyargs):
                        yield ast.Name(argument.arg), ast.Tuple([default])


def _used(node: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    """Yield the values that a node uses, each with the used attribute or method."""
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
