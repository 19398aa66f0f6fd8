"""The source code of the project, and its imports. No module of the project is imported to find them."""

import ast
import json
import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
HOUSE = ("baton", "images", "infra", "tasks", "workflows", "tests")
EXAMPLES = {path.stem for path in (ROOT / "workflows/recipes").rglob("*.py")}  # they import each other by these names


def last_json(output: str) -> Any:
    """Return the last line of JSON that a process printed; vLLM's engines print other lines when they end."""
    return json.loads(next(line for line in reversed(output.splitlines()) if line.startswith(("{", "["))))


def files(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def copy(folder: Path, *names: str) -> None:
    """Copy top-level folders of the project into `folder`, with the namespace's links."""
    for name in ("baton", *names):
        shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def imports(path: Path) -> frozenset[str]:
    """Return every module that a file imports, at its top or inside a function, those of this project without `baton.`.
    For `from a import b` these are a and a.b, since b may be a module."""
    return frozenset(map(_short, _imports(ast.parse(path.read_text()))))


def _imports(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def modules_of(path: Path) -> set[str]:
    """Return the modules that a file imports, as `imports`, but for `from a import b` only a.b if that is a module of
    this project, and otherwise a."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    plain = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    froms = [node for node in nodes if isinstance(node, ast.ImportFrom) and node.module and not node.level]
    names = plain | {
        f"{node.module}.{alias.name}" if _is_ours(f"{node.module}.{alias.name}") else str(node.module)
        for node in froms
        for alias in node.names
    }
    return set(map(_short, names))


def _short(name: str) -> str:
    """Return the name of a module without the namespace, under which the top-level folders are imported."""
    return re.sub(rf"^baton\.(?=({'|'.join(HOUSE)})\b)", "", name)


def _is_ours(module: str) -> bool:
    place = ROOT.joinpath(*module.split("."))
    return place.with_suffix(".py").is_file() or (place / "__init__.py").is_file()


def third_party(path: Path) -> set[str]:
    """Return the top-level packages that belong neither to this project nor to Python."""
    top = {name.split(".")[0] for name in imports(path)}
    return top - {*HOUSE, *EXAMPLES} - sys.stdlib_module_names


def closure(*start: Path) -> set[Path]:
    """Return the files and all files of this project that they import, directly or indirectly."""
    found: set[Path] = set()
    waiting = list(start)
    while waiting:
        path = waiting.pop()
        if path in found:
            continue
        found.add(path)
        for name in imports(path):
            place = ROOT.joinpath(*name.split("."))
            waiting += [each for each in (place.with_suffix(".py"), place / "__init__.py") if each.is_file()]
    return found


@cache
def _installed() -> Mapping[str, list[str]]:
    return packages_distributions()


def distributions(package: str) -> set[str]:
    """Return the normalized names of the distributions that make a package importable."""
    return {normal(name) for name in _installed().get(package, [package])}


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def requirements(path: Path) -> dict[str, str]:
    """Return the version that a requirements file demands for each name ("==1.2", ">=1" or ""), including files named
    by `-r`."""
    found: dict[str, str] = {}
    for raw in path.read_text().splitlines():
        line = raw.split("#")[0].strip()
        if line.startswith("-r "):
            found |= requirements(path.parent / line[3:])
        elif line:
            name, rest = re.fullmatch(r"([A-Za-z0-9._-]+)(?:\[[^]]*\])?\s*(.*)", line).groups()  # type: ignore[union-attr]
            found[normal(name)] = rest
    return found
