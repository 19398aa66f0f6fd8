"""Check every call of a library in our source against the installed signature.

    python -m tests.calls FILE …        prints a line for each call: the file, the line, the call, and the problem

Only the source is read, and only the libraries are imported: run this in a separate process, since an import of our
modules may change the libraries.
"""

import ast
import importlib
import inspect
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from inspect import Parameter, Signature
from pathlib import Path
from types import ModuleType
from typing import Any

LIBRARIES = {"vllm", "trl", "megatron", "transformers", "accelerate"}
Found = tuple[int, str, str]  # the line, the call as written, the problem ("" if there is none)


class Missing(Exception):
    """The library does not have the name."""


def calls(source: str) -> Iterator[Found]:
    """Find the uses of a library: calls of imported functions, of methods of an argument annotated with a class of the
    library, and of `super()` in a class derived from one; overridden methods; names."""
    tree = ast.parse(source)
    try:
        names = _imported(tree)
    except (ImportError, Missing) as error:
        yield 1, "import", str(error)
        return
    yield from _Scope(names).found(tree)


def _imported(tree: ast.AST) -> dict[str, Any]:
    """Return the library's module or object for each imported name. A conditional import may fail."""
    conditional = {each for node in ast.walk(tree) if isinstance(node, ast.If) for each in ast.walk(node)}
    found: dict[str, Any] = {}
    for node in ast.walk(tree):
        with suppress(*((ImportError, Missing) if node in conditional else ())):
            found |= _names(node)
    return found


def _names(node: ast.AST) -> dict[str, Any]:
    """Return the names of an import. Raises ImportError, Missing."""
    if isinstance(node, ast.Import):
        ours = [alias for alias in node.names if alias.name.split(".")[0] in LIBRARIES]
        modules = {alias: importlib.import_module(alias.name) for alias in ours}
        tops = {alias: alias.name.split(".")[0] for alias in ours}
        return {
            alias.asname or tops[alias]: modules[alias] if alias.asname else sys.modules[tops[alias]] for alias in ours
        }
    if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] in LIBRARIES:
        module = importlib.import_module(node.module)
        return {alias.asname or alias.name: _get(module, alias.name) for alias in node.names}
    return {}


def _get(owner: Any, name: str) -> Any:
    """Return an attribute of an object. Raises Missing."""
    if isinstance(owner, ModuleType) and not hasattr(owner, name):
        with suppress(ModuleNotFoundError):
            return importlib.import_module(f"{owner.__name__}.{name}")
    if not hasattr(owner, name):
        raise Missing(f"{owner.__name__} has no {name}")
    return getattr(owner, name)


@dataclass(frozen=True)
class _Scope:
    names: dict[str, Any]  # names in the file, and the library objects that they stand for
    instances: frozenset[str] = frozenset()  # the names that stand for an instance of their class
    base: type | None = None  # the library's class that `super()` stands for

    def found(self, tree: ast.AST) -> Iterator[Found]:
        node: Any
        for node in ast.iter_child_nodes(tree):
            try:
                match node:
                    case ast.ClassDef():
                        bases = [each for each in map(self.target, node.bases) if inspect.isclass(each)]
                        yield from _Scope(self.names, base=bases[0] if bases else None).found(node)
                        continue
                    case ast.FunctionDef():
                        yield from self.override(node)
                        yield from self.inside(node).found(node)
                        continue
                    case ast.Call():
                        yield from self.call(node)
                    case ast.Attribute(ctx=ast.Load()):  # a name that is assigned to may be new
                        self.target(node)
            except Missing as error:
                yield node.lineno, ast.unparse(node), str(error)
            yield from self.found(node)

    def inside(self, function: ast.FunctionDef) -> "_Scope":
        arguments = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
        meant = {each.arg: self.target(_unquoted(each.annotation)) if each.annotation else None for each in arguments}
        instances = {name for name, found in meant.items() if inspect.isclass(found)}
        return _Scope(self.names | meant, self.instances - meant.keys() | instances, self.base)

    def target(self, node: ast.AST) -> Any:
        """Return the object of a library for which an expression stands, or None. Raises Missing."""
        if isinstance(node, ast.Name):
            return self.names.get(node.id)
        if not isinstance(node, ast.Attribute):
            return None
        if self.of_an_instance(node):  # an instance has more attributes than its class
            return getattr(self.base if _is_super(node.value) else self.target(node.value), node.attr, None)
        owner = self.target(node.value)
        return _get(owner, node.attr) if isinstance(owner, ModuleType) or inspect.isclass(owner) else None

    def of_an_instance(self, node: ast.AST) -> bool:
        if not isinstance(node, ast.Attribute):
            return False
        return _is_super(node.value) or (isinstance(node.value, ast.Name) and node.value.id in self.instances)

    def call(self, node: ast.Call) -> Iterator[Found]:
        target = self.target(node.func)
        if not callable(target) or (isinstance(node.func, ast.Name) and node.func.id in self.instances):
            return
        plain = [None for each in node.args if not isinstance(each, ast.Starred)]
        named = {each.arg: None for each in node.keywords if each.arg}
        whole = len(plain) + len(named) == len(node.args) + len(node.keywords)  # no * or **
        if self.of_an_instance(node.func) and not inspect.ismethod(target):
            plain.append(None)
        yield node.lineno, ast.unparse(node.func), _misfit(target, plain, named, whole)

    def override(self, node: ast.FunctionDef) -> Iterator[Found]:
        """Check that our method accepts all that the overridden method accepts, by position or by name."""
        theirs = getattr(self.base, node.name, None)
        if inspect.isfunction(theirs) and node.name != "__init__":
            known = list(inspect.signature(theirs).parameters.values())
            plain = [None for each in known if each.kind == Parameter.POSITIONAL_OR_KEYWORD]
            named = {each.name: None for each in known if each.kind == Parameter.KEYWORD_ONLY}
            by_name = named | {each.name: None for each in known[1:] if each.kind == Parameter.POSITIONAL_OR_KEYWORD}
            whole = not any(each.kind in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD) for each in known)
            ours = _signature(node.args)
            wrong = _unbound(ours, plain, named, whole) and _unbound(ours, [None], by_name, whole)
            yield node.lineno, f"def {node.name}", wrong


def _unquoted(annotation: ast.expr) -> ast.expr:
    """Parse an annotation that is a string, which refers to a class imported for type checkers alone."""
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        return ast.parse(annotation.value, mode="eval").body
    return annotation


def _is_super(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "super"


def _signature(arguments: ast.arguments) -> Signature:
    def made(names: list[ast.arg], kind: Any, optional: int = 0) -> list[Parameter]:
        """Build parameters, of which the last `optional` have a default."""
        needed = len(names) - optional
        return [
            Parameter(each.arg, kind, default=None if at >= needed else Parameter.empty)
            for at, each in enumerate(names)
        ]

    return Signature([
        *made(arguments.args, Parameter.POSITIONAL_OR_KEYWORD, len(arguments.defaults)),
        *made([arguments.vararg] if arguments.vararg else [], Parameter.VAR_POSITIONAL),
        *made(arguments.kwonlyargs, Parameter.KEYWORD_ONLY, len(arguments.kwonlyargs)),
        *made([arguments.kwarg] if arguments.kwarg else [], Parameter.VAR_KEYWORD),
    ])  # fmt: skip


def _misfit(target: Any, plain: list[None], named: dict[str, None], whole: bool) -> str:
    try:
        signature = inspect.signature(target)
    except ValueError:  # implemented in C
        return ""
    found = _unbound(signature, plain, named, whole)
    if getattr(target, "__name__", "") == "LLM":  # LLM passes the rest on to EngineArgs
        from vllm import EngineArgs

        rest = {name: None for name in named if name not in signature.parameters}
        found = found or _unbound(inspect.signature(EngineArgs), [], rest, False)
    return found


def _unbound(signature: Signature, plain: list[None], named: dict[str, None], whole: bool) -> str:
    try:
        (signature.bind if whole else signature.bind_partial)(*plain, **named)
    except TypeError as error:
        return str(error)
    return ""


def main() -> None:
    for name in sys.argv[1:]:
        for line, words, wrong in calls(Path(name).read_text()):
            print(f"{name}:{line}: {words}: {wrong or 'fits'}")


if __name__ == "__main__":
    main()
