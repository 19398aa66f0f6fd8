"""The top-level statements of a function's files that the function uses, directly or indirectly.

The analysis is by name, so that it can only find too much. A definition is used if its name occurs anywhere in what is
used: as a variable, an attribute, an imported name, or a word in a string, in whatever file. Every statement that may
do more than bind a name (tasks/user_code/plain_definitions.py) is used, since it runs when its file is imported. A file
is used if a statement that is used imports it.

Everything in all files counts as used if a statement may find names that do not occur in it: through `globals`, `eval`,
`importlib`, `inspect`, `pickle`, a module of the project that is passed as a value, and the like (`_REFLECTION`).
Where a statement may read its own source (`_TEXT`), the texts of all files are part of the meaning.
"""

import ast
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import PurePosixPath

from baton.tasks.user_code.plain_definitions import DEFINITIONS, PlainDefinitions, dotted

_TEXT = {
    "__file__", "__loader__", "__spec__", "__path__", "__cached__", "__doc__", "__code__", "linecache", "tokenize",
    "tracemalloc", "dis", "doctest", "pydoc", "help", "resources", "getdoc", "getsource", "getsourcelines",
    "getsourcefile", "getfile", "findsource", "getcomments", "getblock", "get_data", "getframeinfo", "jit", "njit",
    "triton", "numba", "f_lineno", "tb_lineno",
}  # fmt: skip
_REFLECTION = {
    "globals", "locals", "vars", "dir", "eval", "exec", "compile", "__import__", "__builtins__", "builtins",
    "importlib", "import_module", "inspect", "pkgutil", "runpy", "unittest", "pytest", "gc", "pickle", "dill",
    "cloudpickle", "joblib", "shelve", "copyreg", "marshal", "modules", "meta_path", "_getframe", "f_globals",
    "f_locals", "f_back", "tb_frame", "gi_frame", "cr_frame", "ag_frame", "__globals__", "__dict__", "__subclasses__",
    "__closure__", "__self__", "__annotations__", "ctypes", "timeit", "codeop", "interact", "locate", "resolve_name",
    "import_string", "attrgetter", "methodcaller",
}  # fmt: skip
_OF_THE_PATH = {"__name__", "__module__", "__package__", "__qualname__", "__main__"}


@dataclass(frozen=True, eq=False)
class Statement:
    """A top-level statement of a file, or one name that it imports."""

    file: str
    node: ast.stmt
    binds: frozenset[str]  # the names of a plain definition; empty if it is used in any case
    names: frozenset[str]  # every name in it
    words: frozenset[str]  # the same, and every word in its strings
    imports: frozenset[str]  # the files that it may import


@dataclass(frozen=True)
class Used:
    """What a function uses of its files."""

    files: tuple[str, ...]
    statements: tuple[Statement, ...]  # in the order of the files
    needs_text: bool  # the texts of all files are part of the meaning
    needs_path: bool  # so is the name of the function's file


def used(sources: Mapping[str, str], file: str, attribute: str) -> Used:
    """Return what a function uses of its sources. Raises SyntaxError, ValueError, RecursionError, MemoryError."""
    return _used(tuple(sorted(sources.items())), file, attribute)


@cache  # an identity is computed more than once
def _used(sources: tuple[tuple[str, str], ...], file: str, attribute: str) -> Used:
    names = frozenset(name for name, _ in sources)
    files = {name: _statements(text, name, names) for name, text in sources}
    chosen: set[Statement] = set()
    reached, words = {*_with_packages(file)}, {attribute}
    while found := [
        each
        for name in reached & names
        for each in files[name]
        if each not in chosen and (not each.binds or each.binds & words)
    ]:
        chosen |= {*found}
        words |= {word for each in found for word in each.words}
        reached |= {name for each in found for name in each.imports}
    everything = [each for several in files.values() for each in several]
    if _is_unclear(chosen, everything, names):
        chosen = {*everything}
    used_names = {word for each in chosen for word in each.words if word in each.names or word.startswith("__")}
    is_imported = any(file in each.imports for each in chosen)
    return Used(
        tuple(sorted(reached & names | {each.file for each in chosen})),
        tuple(each for each in everything if each in chosen),
        needs_text=bool(used_names & _TEXT),
        needs_path="/" in file or is_imported or bool(used_names & _OF_THE_PATH),
    )


def modules_in(tree: ast.AST, file: str) -> list[str]:
    """Return every module to which an import in a part of this file may refer, and its packages."""
    package = PurePosixPath(file).parent.parts
    modules: dict[str, None] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level <= len(package):  # beyond the root: Python raises
            base = [*package[: len(package) - node.level + 1]] if node.level else []
            module_name = ".".join([*base, *filter(None, [node.module])])
            names = [module_name, *(f"{module_name}.{alias.name}" for alias in node.names)]
        else:
            continue
        for name in names:
            parts = name.split(".")
            modules |= dict.fromkeys(".".join(parts[:end]) for end in range(1, len(parts) + 1))
    return list(modules)


@cache  # a recipe's functions mostly share one file
def _statements(text: str, file: str, files: frozenset[str]) -> tuple[Statement, ...]:
    tree = ast.parse(text)
    body = tree.body[1:] if ast.get_docstring(tree, clean=False) is not None else tree.body
    plain = PlainDefinitions(tree)

    def statement(node: ast.stmt, binds: frozenset[str]) -> Statement:
        names, texts = {*_names(node)}, {*_words_in_strings(node)}
        return Statement(file, node, binds, frozenset(names), frozenset(names | texts), _imports(node, file, files))

    found: list[Statement] = []
    for node in body:
        if isinstance(node, ast.ImportFrom) and (aliases := _only_names(node, file, files)):
            found.append(statement(_import_of(node, []), frozenset()))
            found += [
                statement(_import_of(node, [alias]), frozenset({alias.asname or alias.name})) for alias in aliases
            ]
        elif not _runs_as_program_only(node):
            found.append(statement(node, plain.bound_by(node)))
    return tuple(found)


def _imports(node: ast.stmt, file: str, files: frozenset[str]) -> frozenset[str]:
    return frozenset(name for module in modules_in(node, file) for name in _files_of(module)) & files


def _only_names(node: ast.ImportFrom, file: str, files: frozenset[str]) -> list[ast.alias]:
    """Return the names that an import gets from a file of the project; empty if it does more: one of them may be
    another file, or the import is from an installed package, which may do anything."""
    of_module = _imports(_import_of(node, []), file, files)
    is_plain = of_module and of_module == _imports(node, file, files)
    names = [alias.asname or alias.name for alias in node.names]
    return node.names if is_plain and not any("__" in name or name == "*" for name in names) else []


def _import_of(node: ast.ImportFrom, names: list[ast.alias]) -> ast.ImportFrom:
    return ast.copy_location(ast.ImportFrom(node.module, names, node.level), node)


def _runs_as_program_only(node: ast.stmt) -> bool:
    """Return whether a statement is `if __name__ == "__main__": …`: files of functions are always imported."""
    match node:
        case ast.If(
            test=ast.Compare(
                left=ast.Name(id="__name__"), ops=[ast.Eq()], comparators=[ast.Constant(value="__main__")]
            ),
            orelse=[],
        ):
            return True
    return False


def _files_of(module: str) -> tuple[str, str]:
    path = module.replace(".", "/")
    return f"{path}/__init__.py", f"{path}.py"


def _with_packages(file: str) -> list[str]:
    """Return a file, and the files that Python runs before it is imported."""
    return [file, *(f"{folder}/__init__.py" for folder in PurePosixPath(file).parents if folder.name)]


def _names(tree: ast.AST) -> Iterator[str]:
    """Yield every name that occurs in a part of a program."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) or (isinstance(node, ast.Attribute) and dotted(node) == "re.compile"):
            continue  # `re.compile` is not the function `compile`
        for _, value in ast.iter_fields(node):
            for name in value if isinstance(value, list) else [value]:
                if isinstance(name, str):
                    yield from name.split(".")  # of an import


def _words_in_strings(tree: ast.AST) -> Iterator[str]:
    """Yield every word in the strings of a part of a program, other than docstrings."""
    docstrings = {id(node.body[0].value) for node in ast.walk(tree)
                  if isinstance(node, DEFINITIONS) and isinstance(node.body[0], ast.Expr)}  # fmt: skip
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str | bytes) and id(node) not in docstrings:
            text = node.value if isinstance(node.value, str) else node.value.decode("latin-1")
            yield from re.findall(r"\w+", unicodedata.normalize("NFKC", text))


def _is_unclear(chosen: Iterable[Statement], everything: Sequence[Statement], files: frozenset[str]) -> bool:
    """Return whether a statement may use names that do not occur in it."""
    modules = _names_of_modules(everything, files)
    parts = modules | {part for file in files for part in PurePosixPath(file).with_suffix("").parts}
    return any(
        each.names & _REFLECTION
        or any(word.startswith("__") for word in each.words & (_REFLECTION | _TEXT))
        or any(name in (modules if is_variable else parts) for name, is_variable in _values(each.node))
        for each in chosen
    )


def _names_of_modules(everything: Sequence[Statement], files: frozenset[str]) -> set[str]:
    """Return the names that an import binds to a module of the project, in any file."""
    names: set[str] = set()
    aliases = [
        (alias, isinstance(node, ast.Import), _imports(_one(node, alias), each.file, files))
        for each in everything
        for node in ast.walk(each.node)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    ]
    while True:
        more = set()
        for alias, is_plain, imported in aliases:
            is_module = bool(imported) if is_plain else alias.name in names or _has_file(imported, alias.name)
            if is_module:
                more.add(alias.asname or (alias.name.partition(".")[0] if is_plain else alias.name))
        if more <= names:
            return names
        names |= more


def _one(node: ast.Import | ast.ImportFrom, alias: ast.alias) -> ast.stmt:
    return ast.Import([alias]) if isinstance(node, ast.Import) else ast.ImportFrom(node.module, [alias], node.level)


def _has_file(files: Iterable[str], name: str) -> bool:
    """Return whether one of these files is the module of this name."""
    return any(name in (PurePosixPath(file).stem, PurePosixPath(file).parent.name) for file in files)


def _values(tree: ast.AST) -> Iterator[tuple[str, bool]]:
    """Yield the last name of each expression whose value is used other than by its attributes, and whether it is the
    name of a variable."""
    of_attribute = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Name | ast.Attribute)
            and isinstance(node.ctx, ast.Load)
            and id(node) not in of_attribute
        ):
            yield (node.id, True) if isinstance(node, ast.Name) else (node.attr, False)
