"""A user's function, named in a recipe: `file.py:function` or `package.module:function`.

    function = Function.model_validate("sums.py:right")
    function.problems()                checks it without running any of it
    function = function.pinned()       adds the source text of its file and of the project files that it imports
    right = function.load(folder)      writes these files below the folder and imports the function from there

The source text is part of the spec, so it reaches every pod without an upload, and is recorded. The cache key has the
meaning of the function instead: the syntax trees of the definitions that it uses (tasks/user_code/used.py), without
the text, and mostly without the name of the file.
A project file is one beside the function's file (or beside the package that it is part of), or below that folder; a
module belongs to the project if its file is below the current directory. Imported files are found by their import
statements: modules imported by a computed name, and data files, are not included; such data belongs in the rows.
For an installed package only the version is recorded: changes to an editable install go unnoticed.
"""

import ast
import importlib.util
import json
import platform
import sys
import tokenize
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from functools import cache
from importlib.metadata import packages_distributions, version
from pathlib import Path, PurePosixPath
from typing import Any, Self

from pydantic import Field, GetJsonSchemaHandler, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from baton.infra.errors import UserError, absent
from baton.tasks.core.job import StageError
from baton.tasks.core.manifest import text_digest
from baton.tasks.core.spec import Problem, Spec
from baton.tasks.user_code.load_function import Unusable, load_function
from baton.tasks.user_code.meaning import without_comments
from baton.tasks.user_code.syntax import form
from baton.tasks.user_code.used import modules_in, used

LARGEST_BYTES = 1_000_000  # limit for all files together, which are part of every message with the spec
NAME = r"^([^:]+\.py|[A-Za-z_]\w*(\.[A-Za-z_]\w*)*):[A-Za-z_]\w*$"
FUNCTION = "`file.py:function` or `package.module:function`"
MEANING = "meaning"  # in place of the file names of a source: the digest of what it means
ANY_FILE = "function.py"  # in place of the name of the function's file
_source_in_identity = ContextVar[Callable[[str], str] | None]("_source_in_identity", default=None)
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


class Function(Spec):
    """A function identified by its name, to which a recipe may abbreviate it."""

    name: str = Field(pattern=NAME, description=FUNCTION)
    source: dict[str, str] | None = Field(
        None, repr=False, description="its file and the project files that it imports; filled in by Baton"
    )
    version: str | None = Field(None, description="version of its installed package; filled in by Baton")

    @model_validator(mode="before")
    @classmethod
    def _by_name(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"anyOf": [{"type": "string", "pattern": NAME}, handler(core)]}

    @property
    def place(self) -> str:
        """The file or the module."""
        return self.name.rpartition(":")[0]

    @property
    def attribute(self) -> str:
        return self.name.rpartition(":")[2]

    @property
    def module(self) -> str:
        """The module to import, once its source is known."""
        if self.source is None:
            return self.place
        parts = PurePosixPath(self.place).with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    def pinned(self) -> Self:
        """Return a copy with the current source of the function's files, named relative to their common folder, or with
        the version of its installed package. Raises UserError."""
        if self.source is not None or self.version is not None:
            return self
        if problems := self.problems():
            raise UserError("\n".join(map(str, problems)))
        located = self._locate()
        if located is None:
            return self.model_copy(update={"version": _version(self.place)})
        key, sources = located
        return self.model_copy(update={"name": f"{key}:{self.attribute}", "source": sources})

    def identity(self) -> dict[str, Any]:
        reduced = _source_in_identity.get()
        if reduced and self.source:
            return super().identity() | {"source": {name: reduced(text) for name, text in self.source.items()}}
        return super().identity() | self._meaning()

    def split_options(self) -> tuple[Self, dict[str, Any]]:
        meaning = self._meaning()
        given = {name: getattr(self, name) for name, value in meaning.items() if value != getattr(self, name)}
        return self.model_copy(update=meaning), given

    def _meaning(self) -> dict[str, Any]:
        """Return the fields whose text does not count, with what does."""
        as_it_is = {"name": self.name, "source": self.source}
        if self.source is None or MEANING in self.source:
            return as_it_is
        try:
            found = used(self.source, self.place, self.attribute)
            trees = {name: [form(each.node) for each in found.statements if each.file == name] for name in found.files}
            if found.needs_text:
                return as_it_is
            if not found.needs_path:
                trees[""] = trees.pop(self.place)
            name = self.name if found.needs_path else f"{ANY_FILE}:{self.attribute}"
            return {"name": name, "source": {MEANING: text_digest(json.dumps(trees, sort_keys=True))}}
        except (SyntaxError, ValueError, RecursionError, MemoryError):  # the files are checked elsewhere
            return as_it_is

    def problems(self) -> list[Problem]:
        allowed = self._allowed()
        return [Problem("name", self.name, allowed)] if allowed else []

    def _allowed(self) -> str:
        """Return a description of a valid function for an error message; empty if this one is valid."""
        if self.version is not None:
            return ""
        try:
            located = self._locate()
            names, known = _defined(located[1][located[0]], located[0]) if located else ([], [])
        except FileNotFoundError as error:
            return f"an existing file; {absent(error.filename)}"
        except (OSError, ValueError, SyntaxError, RuntimeError, MemoryError) as error:  # RuntimeError: ~user
            return f"a file of Python source; {_why(error)}"
        except KeyError:
            return f"a function in its source files: {', '.join(self.source or ())}"
        if located is None:
            top = self.place.partition(".")[0]
            installed = top in sys.modules or importlib.util.find_spec(top) is not None
            return "" if installed else f"a module that is installed or below {Path.cwd()}; there is no {top}"
        key, sources = located
        if self.attribute not in names and "*" not in names:
            return f"a function of {key}: {', '.join(known) or '(it has none)'}"
        return _not_portable(sources)

    def sources(self) -> dict[str, str]:
        """Return the text of the function's files by name; empty if it is in an installed package, or its files cannot
        be read, which `problems` reports."""
        try:
            located = self._locate()
        except (OSError, ValueError, SyntaxError, RuntimeError, MemoryError):
            return {}
        return located[1] if located else {}

    def write(self, folder: Path) -> None:
        """Write the function's source files below the folder. Raises StageError, also if another function's file of the
        same name exists, since Python would reuse the module imported first."""
        for name, text in (self.source or {}).items():
            target = folder / name
            if target.is_file() and target.read_bytes() != text.encode():
                raise StageError(f"{self.name}: another function's file is named {name} too; rename one of them")
        write_files(self.source or {}, folder)

    def request(self) -> dict[str, Any]:
        """Return the arguments of `load_function` other than the folder, for another process."""
        return {"module": self.module, "attribute": self.attribute, "in_folder": self.source is not None}

    def load(self, folder: Path) -> Callable[..., Any]:
        """Import the function from `folder` or from its package. Raises StageError."""
        self.write(folder)
        try:
            return load_function(folder, **self.request())
        except Unusable as error:
            raise StageError(f"{self.name}: {error}") from error

    def _locate(self) -> tuple[str, dict[str, str]] | None:
        """Return the relative name of the function's file, and the sources of that file and of those that it imports;
        None for an installed package. Raises OSError, ValueError, SyntaxError."""
        if self.source is not None:
            return self.place, self.source
        root = Path.cwd()
        file = module_file(root, self.place)
        if self.place.endswith(".py"):
            file = Path(self.place).expanduser().absolute()
            root = file.parent
            while (root / "__init__.py").is_file():  # `from .other import x` must work in a package
                root = root.parent
        if file is None:
            return None
        return file.relative_to(root).as_posix(), _sources(file, root)


def earlier_identities(spec: Spec) -> Iterator[dict[str, Any]]:
    """Yield the identities that a spec had until 2026-12: with the text of its functions without comments, and before,
    with all of it."""
    for reduced in (without_comments, str):
        token = _source_in_identity.set(reduced)
        try:
            identity = spec.identity()
        finally:
            _source_in_identity.reset(token)
        yield identity


def python_text(path: Path) -> str:
    """Read a Python file in the encoding that it declares. Raises OSError, SyntaxError, and ValueError if that is not
    UTF-8: copies are written in UTF-8, so the declaration would be wrong."""
    with tokenize.open(path) as stream:
        text = stream.read()
    if not text.isascii() and stream.encoding not in ("utf-8", "utf-8-sig"):
        raise ValueError(f"{path} is in {stream.encoding}: save it as UTF-8, and remove the line that names another")
    return text


def same_names(functions: Mapping[str, Function]) -> Iterator[Problem]:
    """Yield a problem for each function that one process could not import together with the others, since another file
    has the same name. `functions` are by their paths in a spec; those with other problems are skipped."""
    texts: dict[str, str] = {}
    for path, function in functions.items():
        for name, text in ({} if function.problems() else function.pinned().source or {}).items():
            if texts.setdefault(name, text) != text:
                allowed = f"files with distinct names: two different ones are imported as {name}; rename one"
                yield Problem(path, function.name, allowed)


def write_files(files: Mapping[str, str], folder: Path) -> None:
    """Write texts by relative file names below the folder. Raises StageError for a name that leaves the folder."""
    for name, text in files.items():
        path = inside(folder, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def inside(folder: Path, name: str) -> Path:
    """Return the path of this name below the folder. Raises StageError for a name that leaves the folder."""
    path = folder / name
    if not path.parent.resolve().is_relative_to(folder.resolve()) or path.name in ("", ".."):
        raise StageError(f"the recipe has a file {name!r}, which is outside its folder; rename it")
    return path


def _not_portable(sources: dict[str, str]) -> str:
    """Return a description of valid files for an error message; empty if these can be sent to a pod."""
    size = sum(len(text.encode(errors="replace")) for text in sources.values())
    if size > LARGEST_BYTES:
        return (
            f"at most {LARGEST_BYTES / 1e6:g} MB of source; it and the files that it imports have {size / 1e6:.1f} MB: "
            "import less, install it as a package, or put its data into the rows"
        )
    # Such a file would shadow the standard library's module for every library.
    taken = {PurePosixPath(key).parts[0].removesuffix(".py") for key in sources} & sys.stdlib_module_names
    if taken:
        return f"file names that are not modules of Python's standard library; rename {min(taken)}"
    dotted = [key for key in sources if "." in key.removesuffix(".py")]
    return f"files that can be imported; rename {dotted[0]}: it has a dot in its name" if dotted else ""


def _sources(file: Path, root: Path) -> dict[str, str]:
    """Return a file and every project file that it imports, directly or indirectly, by their names below the root."""
    sources: dict[str, str] = {}
    top_level = {path.name.removesuffix(".py") for path in root.iterdir()}
    waiting = [file]
    while waiting:
        path = waiting.pop()
        key = path.relative_to(root).as_posix()
        if key in sources:
            continue
        sources[key] = python_text(path)
        if sum(map(len, sources.values())) > LARGEST_BYTES:
            break  # too large already
        names = [".".join(parent.parts) for parent in PurePosixPath(key).parents[:-1]]  # the packages of the module
        names += imported(sources[key], key)
        project_modules = [name for name in names if name.partition(".")[0] in top_level]
        waiting += [module for name in project_modules if (module := module_file(root, name))]
    return dict(sorted(sources.items()))


@cache  # a recipe's functions mostly share one file, which is read more than once
def imported(text: str, key: str) -> list[str]:
    """Return every module to which an import in this file may refer, and its packages."""
    return modules_in(ast.parse(text, key), key)


@cache
def _defined(text: str, key: str) -> tuple[list[str], list[str]]:
    """Return the names that a file defines, and those of its top-level functions and classes. Raises SyntaxError."""
    body = ast.parse(text, key).body
    return [*_names(body)], [node.name for node in body if isinstance(node, _DEFINITIONS)]


def module_file(root: Path, name: str) -> Path | None:
    place = root.joinpath(*name.split("."))
    files = (place / "__init__.py", place.with_name(f"{place.name}.py"))
    return next((file for file in files if file.is_file()), None)


def _names(body: list[ast.stmt]) -> Iterator[str]:
    """Yield the names that a module's top level defines, also inside `if` and `try`; `*` for a star import."""
    for node in body:
        if isinstance(node, _DEFINITIONS):
            yield node.name
            continue  # the body is another scope
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from (alias.asname or alias.name for alias in node.names)
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.stmt | ast.ExceptHandler):
                yield from _names([child])  # type: ignore[list-item]
            elif isinstance(child, ast.Name | ast.Tuple | ast.List):
                yield from (name.id for name in ast.walk(child) if isinstance(name, ast.Name))


def _version(module: str) -> str:
    top = module.partition(".")[0]
    if top in sys.stdlib_module_names:
        return f"python {platform.python_version()}"
    return ", ".join(f"{name} {version(name)}" for name in sorted(set(packages_distributions().get(top, ())))) or top


def _why(error: Exception) -> str:
    if isinstance(error, SyntaxError):
        return f"{error.filename or 'it'}, line {error.lineno}: {error.msg}"
    return str(error)
