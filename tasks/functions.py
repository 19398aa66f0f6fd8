"""A function of the user's, named in a recipe: `file.py:function` or `package.module:function`.

    function = Function.model_validate("sums.py:right")
    function.problems()                what is wrong with it, looked up without running any of it
    function = function.as_found()     with the source text of its file, and of the project files that it imports
    right = function.load(folder)      writes these files below the folder, and imports it from there

The source text is part of the spec, so it is in the cache key, reaches every pod without an upload, and is recorded.
A project file is one beside the function's own (or beside the package that it is part of), or below that folder; a
module is one of the project when its file is below the current directory. Which files are imported is read from their
import statements: what is imported by a computed name, and data files, do not travel; such data belongs in the rows.
Of an installed package the version alone is recorded: an editable install changes unnoticed.
"""

import ast
import importlib.util
import platform
import sys
import tokenize
from collections.abc import Callable, Iterator
from importlib.metadata import packages_distributions, version
from pathlib import Path, PurePosixPath
from typing import Any, Self

from pydantic import Field, GetJsonSchemaHandler, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from infra.errors import Stopped
from tasks.job import StageError
from tasks.load_function import Unusable, load_function
from tasks.spec import Problem, Spec

LARGEST_BYTES = 1_000_000  # of all files together: they are part of every message that holds the spec
NAME = r"^([^:]+\.py|[A-Za-z_]\w*(\.[A-Za-z_]\w*)*):[A-Za-z_]\w*$"
FUNCTION = "`file.py:function` or `package.module:function`"
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


class Function(Spec):
    """A function by its name; in a recipe, its name alone may stand for it."""

    name: str = Field(pattern=NAME, description=FUNCTION)
    source: dict[str, str] | None = Field(
        None, repr=False, description="its file and the project files that it imports; filled in by Baton"
    )
    version: str | None = Field(None, description="of the installed package that it is in; filled in by Baton")

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
        """What Python imports, once it is found."""
        if self.source is None:
            return self.place
        parts = PurePosixPath(self.place).with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    def as_found(self) -> Self:
        """This with the source of its files as they are now, named from their common folder; or with the version of
        the package that it is in. Raises Stopped."""
        if self.source is not None or self.version is not None:
            return self
        if problems := self.problems():
            raise Stopped("\n".join(map(str, problems)))
        found = self._found()
        if found is None:
            return self.model_copy(update={"version": _version(self.place)})
        key, sources = found
        return self.model_copy(update={"name": f"{key}:{self.attribute}", "source": sources})

    def problems(self) -> list[Problem]:
        allowed = self._wanted()
        return [Problem("name", self.name, allowed)] if allowed else []

    def _wanted(self) -> str:
        """What would be accepted in its place; empty when it is right."""
        if self.version is not None:
            return ""
        try:
            found = self._found()
            body = ast.parse(found[1][found[0]], found[0]).body if found else []
        except FileNotFoundError as error:
            return f"a file that is there; {error.filename} is not"
        except (OSError, ValueError, SyntaxError, RuntimeError, MemoryError) as error:  # RuntimeError: ~nobody
            return f"a file of Python source; {_why(error)}"
        except KeyError:
            return f"a function of its own source files: {', '.join(self.source or ())}"
        if found is None:
            top = self.place.partition(".")[0]
            there = top in sys.modules or importlib.util.find_spec(top) is not None
            return "" if there else f"a module that is installed, or is below {Path.cwd()}; there is no {top}"
        key, sources = found
        names = set(_names(body))
        if self.attribute not in names and "*" not in names:
            known = [each.name for each in body if isinstance(each, _DEFINITIONS)]
            return f"a function of {key}: {', '.join(known) or '(it has no function)'}"
        return _not_portable(sources)

    def write(self, folder: Path) -> None:
        """Its source files, below the folder."""
        for key, text in (self.source or {}).items():
            path = folder / key
            if not path.resolve().is_relative_to(folder.resolve()):
                raise StageError(f"{self.name}: its source has a file {key!r}, which is not below a folder")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")

    def load(self, folder: Path) -> Callable[..., Any]:
        """The function itself, imported from below `folder`, or from its package. Raises StageError."""
        self.write(folder)
        try:
            return load_function(folder, self.module, self.attribute, in_folder=self.source is not None)
        except Unusable as error:
            raise StageError(f"{self.name}: {error}") from error

    def _found(self) -> tuple[str, dict[str, str]] | None:
        """The name of its file below its folder, and the source of that file and of those that it imports; None when
        it is installed. Raises OSError, ValueError, SyntaxError."""
        if self.source is not None:
            return self.place, self.source
        root = Path.cwd()
        file = _module_file(root, self.place)
        if self.place.endswith(".py"):
            file = Path(self.place).expanduser().absolute()
            root = file.parent
            while (root / "__init__.py").is_file():  # it is of a package: `from .other import x` is to work
                root = root.parent
        if file is None:
            return None
        return file.relative_to(root).as_posix(), _sources(file, root)


def _not_portable(sources: dict[str, str]) -> str:
    """Why these files cannot travel; empty when they can."""
    size = sum(len(text.encode(errors="replace")) for text in sources.values())
    if size > LARGEST_BYTES:
        way_out = "import less, install it as a package, or put its data into the rows"
        most = f"at most {LARGEST_BYTES / 1e6:g} MB of source"
        return f"{most}; it and the files that it imports have {size / 1e6:.1f} MB: {way_out}"
    # with a file of such a name in front of Python's own, every library would import the file
    taken = {PurePosixPath(key).parts[0].removesuffix(".py") for key in sources} & sys.stdlib_module_names
    if taken:
        return f"files with names of their own; {min(taken)} is a module of Python's: rename it"
    dotted = [key for key in sources if "." in key.removesuffix(".py")]
    return f"files that can be imported; rename {dotted[0]}: it has a full stop in its name" if dotted else ""


def _sources(file: Path, root: Path) -> dict[str, str]:
    """The file and every file of the project that it imports, however deep, by their names below the root."""
    found: dict[str, str] = {}
    waiting = [file]
    while waiting:
        path = waiting.pop()
        key = path.relative_to(root).as_posix()
        if key in found:
            continue
        with tokenize.open(path) as stream:  # in the encoding that the file itself names
            found[key] = stream.read()
        if sum(map(len, found.values())) > LARGEST_BYTES:
            break  # more than can be used
        names = [".".join(parent.parts) for parent in PurePosixPath(key).parents[:-1]]  # its packages
        names += _imported(ast.parse(found[key], key), key)
        waiting += [each for name in names if (each := _module_file(root, name))]
    return dict(sorted(found.items()))


def _imported(tree: ast.AST, key: str) -> Iterator[str]:
    """Every module that may be meant by an import in this file, its packages included."""
    package = PurePosixPath(key).parent.parts
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level <= len(package):  # from beyond the root: its own error
            base = [*package[: len(package) - node.level + 1]] if node.level else []
            whole = ".".join([*base, *filter(None, [node.module])])
            names = [whole, *(f"{whole}.{alias.name}" for alias in node.names)]
        else:
            continue
        for name in names:
            parts = name.split(".")
            yield from (".".join(parts[:end]) for end in range(1, len(parts) + 1))


def _module_file(root: Path, name: str) -> Path | None:
    place = root.joinpath(*name.split("."))
    files = (place / "__init__.py", place.with_name(f"{place.name}.py"))
    return next((file for file in files if file.is_file()), None)


def _names(body: list[ast.stmt]) -> Iterator[str]:
    """What a module's top level gives a name to, those inside `if` and `try` too; `*` for an import of everything."""
    for node in body:
        if isinstance(node, _DEFINITIONS):
            yield node.name
            continue  # what is inside it has other names
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from (alias.asname or alias.name for alias in node.names)
        for each in ast.iter_child_nodes(node):
            if isinstance(each, ast.stmt | ast.ExceptHandler):
                yield from _names([each])  # type: ignore[list-item]
            elif isinstance(each, ast.Name | ast.Tuple | ast.List):
                yield from (name.id for name in ast.walk(each) if isinstance(name, ast.Name))


def _version(module: str) -> str:
    top = module.partition(".")[0]
    if top in sys.stdlib_module_names:
        return f"python {platform.python_version()}"
    return ", ".join(f"{name} {version(name)}" for name in sorted(set(packages_distributions().get(top, ())))) or top


def _why(error: Exception) -> str:
    if isinstance(error, SyntaxError):
        return f"{error.filename or 'it'}, line {error.lineno}: {error.msg}"
    return str(error)
