"""The definitions at the top of a file that run no other code when the file is imported, so that nothing depends on
them unless their name is used: functions, classes without bases, and constants."""

import ast
import builtins

DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_DECORATORS = {
    "dataclasses.dataclass", "functools.cache", "functools.lru_cache", "contextlib.contextmanager",
    "staticmethod", "classmethod", "property",
}  # fmt: skip
_CALLS = {"re.compile", "dataclasses.field", "frozenset", "set", "dict", "list", "tuple"}
_GENERIC = {"list", "dict", "tuple", "set", "frozenset", "type"}
_BASES = {"object"} | {
    name for name, value in vars(builtins).items() if isinstance(value, type) and issubclass(value, BaseException)
}
_IN_TYPES = (
    ast.Name, ast.Attribute, ast.Subscript, ast.Tuple, ast.List, ast.Constant, ast.BinOp, ast.BitOr, ast.UnaryOp,
    ast.USub, ast.Load,
)  # fmt: skip


class PlainDefinitions:
    """Recognizes the plain definitions of one file."""

    def __init__(self, tree: ast.Module) -> None:
        self._imported: dict[str, str] = {}  # full names of what the file imports at its top
        for node in tree.body:
            if isinstance(node, ast.Import):
                self._imported |= {alias.asname or alias.name: alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                self._imported |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
        self._bound = _bound(tree)
        self._has_star = any(alias.name == "*" for node in ast.walk(tree) for alias in getattr(node, "names", [])
                             if isinstance(alias, ast.alias))  # fmt: skip

    def bound_by(self, node: ast.stmt) -> frozenset[str]:
        """Return the names that a plain definition binds; empty if the statement is none. Python itself looks up names
        such as `__getattr__`, and changes names such as `__x` in classes, so their definitions are not plain."""
        names: list[str] = []
        if isinstance(node, DEFINITIONS) and self._is_plain(node):
            names = [node.name]
        elif isinstance(node, ast.Assign) and self._is_literal(node.value):
            names = [target.id if isinstance(target, ast.Name) else "__" for target in node.targets]
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and _is_type(node.annotation):
            names = [node.target.id] if node.value is None or self._is_literal(node.value) else []
        return frozenset() if any("__" in name for name in names) else frozenset(names)

    def _is_plain(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> bool:
        if getattr(node, "type_params", []) or not all(map(self._is_decorator, node.decorator_list)):
            return False
        if isinstance(node, ast.ClassDef):
            return not node.keywords and all(map(self._is_base, node.bases)) and all(map(self._is_member, node.body))
        arguments = node.args
        named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
        types = [*(each.annotation for each in named if each), node.returns]
        defaults = [*arguments.defaults, *arguments.kw_defaults]
        return all(_is_type(each) for each in types if each) and all(
            self._is_literal(each) for each in defaults if each
        )

    def _is_member(self, node: ast.stmt) -> bool:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            return self._is_plain(node)
        is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        return (
            is_text or isinstance(node, ast.Pass) or (not isinstance(node, ast.ClassDef) and bool(self.bound_by(node)))
        )

    def _is_decorator(self, node: ast.expr) -> bool:
        if isinstance(node, ast.Call):
            given = [*node.args, *(keyword.value for keyword in node.keywords)]
            return self._full_name(node.func) in _DECORATORS and all(map(self._is_literal, given))
        return self._full_name(node) in _DECORATORS

    def _is_base(self, node: ast.expr) -> bool:
        return isinstance(node, ast.Name) and self._full_name(node) in _BASES

    def _is_literal(self, node: ast.expr) -> bool:
        """Return whether a value is made by Python alone, of parts that stay as they are."""
        match node:
            case ast.Constant() | ast.Name():
                return True
            case ast.Lambda(args=arguments):
                return not arguments.defaults and not any(arguments.kw_defaults)
            case ast.Tuple(elts=parts) | ast.List(elts=parts) | ast.Set(elts=parts):
                return all(map(self._is_literal, parts))
            case ast.Dict(keys=keys, values=values):
                return all(each is not None and self._is_literal(each) for each in [*keys, *values])
            case ast.UnaryOp() | ast.BinOp():
                return not any(
                    isinstance(each, ast.expr) and not isinstance(each, ast.UnaryOp | ast.BinOp | ast.Constant)
                    for each in ast.walk(node)
                )
            case ast.Subscript(value=of):  # dict[str, float]
                return isinstance(of, ast.Name) and self._full_name(of) in _GENERIC and _is_type(node)
            case ast.Call(func=called, args=values, keywords=keywords):
                # a name may be of an iterator, which `list` would use up
                given = [*values, *(keyword.value for keyword in keywords if keyword.arg)]
                is_known = self._full_name(called) in _CALLS and len(given) == len(values) + len(keywords)
                return (
                    is_known
                    and all(map(self._is_literal, given))
                    and not any(isinstance(each, ast.Name) for each in values)
                )
        return False

    def _full_name(self, node: ast.expr) -> str:
        """Return the full name of something of an imported module, or of Python itself; empty for anything else."""
        name = dotted(node)
        first, _, rest = name.partition(".")
        if first in self._bound or self._has_star:
            return ""
        return f"{self._imported.get(first, first)}.{rest}" if rest else self._imported.get(first, first)


def dotted(node: ast.expr) -> str:
    """Return `a.b` of such an expression; empty for another."""
    if isinstance(node, ast.Name):
        return node.id
    return f"{of}.{node.attr}" if isinstance(node, ast.Attribute) and (of := dotted(node.value)) else ""


def _bound(tree: ast.Module) -> set[str]:
    """Return the names that something other than an import at the file's top may bind."""
    at_top = {id(node) for node in tree.body}
    bound: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            bound.add(node.id)
        elif isinstance(node, DEFINITIONS):
            bound.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom) and id(node) not in at_top:
            bound |= {alias.asname or alias.name.partition(".")[0] for alias in node.names}
    return bound


def _is_type(node: ast.expr) -> bool:
    """Return whether an annotation runs no code but that of types."""
    return all(isinstance(each, _IN_TYPES) for each in ast.walk(node))
