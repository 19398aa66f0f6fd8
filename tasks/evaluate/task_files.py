"""The files that lm-eval tasks in YAML files read: they are embedded in the spec or named by digest, then placed again.

    files = gathered(["tasks/mine.yaml"])          # on the machine that starts the run
    place(folder, texts, digests, where)           # where it runs: the same files below `folder`

Thus a changed file changes the cache key, and the files reach every pod. A task reads the YAML files that it includes,
the members of its group, the Python files of its functions with the project files that those import, its data
(`dataset_path`, `dataset_kwargs`), and the files that strings of its Python files name. A name is relative to the file
that has it, or else to the current directory, as in lm-eval. Of a name that Python puts together, such as
f"words/{language}.txt", all files are taken that it may be; one without a literal end is not found. All must be below
the current directory, or below the folder of a given YAML file.

Sources, and other files as long as all texts have at most 1 MB, are embedded. The others are identified by their BLAKE3
and read where they are, or from an archive that was uploaded for the run.
"""

import ast
import glob
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import yaml
from blake3 import blake3

from infra.errors import UserError
from infra.paths import home_path
from infra.storage.address import digest_of, fetch
from tasks.core.job import StageError
from tasks.user_code.functions import LARGEST_BYTES, imported, inside, module_file, python_text, write_files

SUFFIXES = (".yaml", ".yml")
MERGE = "tag:yaml.org,2002:merge"
SYSTEM = ("/bin/", "/dev/", "/etc/", "/lib", "/proc/", "/sys/", "/usr/")  # what every machine has
LONGEST_NAME = 1024  # of a string that may name a file
PLACEHOLDER = re.compile(r"%\(?\w*\)?[sd]|\{\w*\}")  # of the operator % and of format()
# a relative name with an ending, such as words/*.txt
FILE_PATTERN = re.compile(r"(?![~/.])[^\n\0:()^$|\\]{1,200}\.\w{1,16}")
# datasets' builders for files of one kind: with these, data_files are local files or addresses
BUILDERS = (
    "json", "csv", "parquet", "arrow", "text", "pandas", "xml", "webdataset", "imagefolder", "audiofolder", "conll",
)  # fmt: skip


def is_file_name(task: str) -> bool:
    return task.endswith(SUFFIXES)


@dataclass(frozen=True)
class Gathered:
    """The tasks, those of files by their names below `root`, and all files by such names."""

    tasks: list[str]
    root: Path
    texts: dict[str, str]
    digests: dict[str, str]  # BLAKE3 of the files that are not in `texts`


def gathered(tasks: Sequence[str]) -> Gathered:
    """Find the files of the tasks. Raises UserError."""
    paths = {task: _absolute(Path.cwd(), task) for task in tasks if is_file_name(task)}
    search = _Search([path.parent for path in paths.values()])
    for path in paths.values():
        search.task(path)
    if not paths:
        return Gathered(list(tasks), Path.cwd(), {}, {})
    root = search.root()
    names = {path: path.relative_to(root).as_posix() for path in sorted(search.files)}
    texts = {names[path]: text for path, text in search.texts.items()}
    digests: dict[str, str] = {}
    size = sum(len(text.encode()) for text in texts.values())
    if size > LARGEST_BYTES:
        raise UserError(
            f"evaluate: {', '.join(paths)}: the YAML and Python files of these lm-eval tasks have {size / 1e6:.1f} MB, "
            f"of at most {LARGEST_BYTES / 1e6:g} MB: import less, or install their code as a package"
        )
    for path in sorted(names.keys() - search.texts.keys(), key=lambda path: (path.stat().st_size, path)):
        about = path.stat()
        text = _text(path) if size + about.st_size <= LARGEST_BYTES else None
        if text is None:
            digests[names[path]] = _digest(path, about.st_size, about.st_mtime_ns, about.st_ctime_ns)
        else:
            texts[names[path]], size = text, size + about.st_size
    tasks = [names[paths[task]] if task in paths else task for task in tasks]
    return Gathered(tasks, root, dict(sorted(texts.items())), dict(sorted(digests.items())))


def place(folder: Path, texts: Mapping[str, str], digests: Mapping[str, str], where: str | None) -> None:
    """Write the texts below `folder`, and link the other files; they are in the folder or archive `where`. Raises
    StageError, StorageError."""
    write_files(texts, folder)
    source = fetch(where) if where and digest_of(where) else Path(where or ".")
    for name, digest in digests.items():
        link = inside(folder, name)
        try:
            about = (source / name).stat()
            changed = _digest(source / name, about.st_size, about.st_mtime_ns, about.st_ctime_ns) != digest
        except OSError as error:
            raise StageError(f"evaluate: {source / name}: cannot read this file of an lm-eval task: {error}") from error
        if changed:
            raise StageError(
                f"evaluate: {source / name}: was changed since the run started. Run the same command again"
            )
        link.parent.mkdir(parents=True, exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to((source / name).absolute())


class _Search:
    """Collects the files of tasks; `texts` are those of sources."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self.cwd = Path.cwd()
        self.allowed = [self.cwd, *folders]
        self.files: set[Path] = set()
        self.texts: dict[Path, str] = {}
        self.groups: set[int] = set()  # nodes whose members were looked for
        self.from_cwd = False  # whether a name was relative to the current directory, which must then be the root

    def root(self) -> Path:
        """The common folder of all files. Raises UserError."""
        common = Path(os.path.commonpath([path.parent for path in self.files]))
        if not self.from_cwd:
            return common
        if not common.is_relative_to(self.cwd):
            raise UserError(
                f"evaluate: lm-eval tasks in {common} name files relative to the current directory {self.cwd}, which "
                "does not contain them all: run from a folder that does, or name the files relative to the YAML file"
            )
        return self.cwd

    def task(self, path: Path) -> None:
        """A YAML file: a task, a group, or what one of them includes."""
        if path in self.texts:
            return
        top = self._yaml(path)
        for name in _scalars(top.get("include")):
            if not (included := self._file(name, path)):
                raise UserError(f"evaluate: {path}: include: {name!r}: no such file beside it or in {self.cwd}")
            self.task(included)
        self._data(top, path)
        for node in top.values():
            self._strings(node, path)
        if "group" in top and "class" not in top:
            self._members(top.get("task"), path)

    def _yaml(self, path: Path) -> dict[str, yaml.Node]:
        try:
            self.texts[path] = path.read_bytes().decode()
            node = yaml.compose(self.texts[path])
        except (OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError) as error:
            reason = getattr(error, "strerror", None) or str(error).partition("\n")[0]
            raise UserError(f"evaluate: {path}: cannot read this file of an lm-eval task: {reason}") from error
        if twice := _twice(node):
            raise UserError(f"evaluate: {path}: {twice} occurs twice in one mapping; lm-eval takes the last: keep one")
        self.files.add(path)
        return _mapping(node)

    def _strings(self, node: yaml.Node | None, path: Path) -> None:
        """Functions, and whatever else names a file."""
        for scalar in _nodes(node):
            if scalar.tag == "!function":
                self._function(scalar.value, path)
            elif scalar.tag == "tag:yaml.org,2002:str" and (file := self._file(scalar.value, path)):
                self.files.add(file)

    def _members(self, node: yaml.Node | None, path: Path) -> None:
        """Members of a group: those that a YAML file beside it or below its folder defines. Others are lm-eval's."""
        if id(node) in self.groups:
            return  # an alias may repeat it, also in itself
        self.groups.add(id(node))
        beside = _defined_below(path.parent)
        for item in node.value if isinstance(node, yaml.SequenceNode) else [node]:
            inner = _mapping(item)
            if inner:
                self._data(inner, path)
                self._members(inner.get("task") if "group" in inner else None, path)
            name = item.value if isinstance(item, yaml.ScalarNode) else _scalar(inner.get("task") or inner.get("group"))
            for file in beside.get(name, ()):
                self.task(file)

    def _data(self, config: Mapping[str, yaml.Node], path: Path) -> None:
        """The files of a task's data set. Raises UserError for a missing one."""
        kwargs, source = _mapping(config.get("dataset_kwargs")), _scalar(config.get("dataset_path"))
        folders = []
        for name in (_scalar(kwargs.get("data_dir")), source):
            if name not in BUILDERS and _may_be_a_name(name):
                if folder := self._resolved(name, [path.parent], path, Path.is_dir):
                    folders.append(folder)
                    self.files.update(_below(folder))
                elif name == source:
                    return  # a data set on the hub, as are its data_files
        for name in _scalars(kwargs.get("data_files")):
            matches = self._matches(name, [*folders, path.parent], path, partial(matching, name))
            if not matches and source and "://" not in name:
                raise UserError(
                    f"evaluate: {path}: data_files: {name!r}: no such file beside the YAML file or in {self.cwd}"
                )
            self.files.update(matches)

    def _function(self, name: str, path: Path) -> None:
        """The Python file of `!function utils.score`, if it is not of an installed package."""
        module = name.rpartition(".")[0].replace(".", "/") + ".py"
        if file := self._resolved(module, [path.parent], path, Path.is_file):
            self._python(file, path.parent)

    def _python(self, path: Path, folder: Path) -> None:
        """A Python file, what it imports, and the files that its strings name. `folder`: of the YAML file."""
        if path in self.texts:
            return
        try:
            text = self.texts[path] = python_text(path)
            tree = ast.parse(text, str(path))
        except (OSError, SyntaxError, ValueError, RecursionError) as error:
            raise UserError(f"evaluate: {path}: cannot read this file of an lm-eval task: {error}") from error
        self.files.add(path)
        for name in imported(text, path.name):
            for root in (path.parent, folder, self.cwd):
                if file := module_file(root, name):
                    self._check(file, path)
                    self.from_cwd |= root not in (path.parent, folder)
                    self._python(file, folder)
                    break
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                self._opened(node.value, path, [path.parent, folder])
            self._put_together(_pattern(node), path, [path.parent, folder])

    def _put_together(self, pattern: str, path: Path, folders: Sequence[Path]) -> None:
        """The files that a string with unknown parts, or a glob, may name."""
        if FILE_PATTERN.fullmatch(pattern):
            self.files.update(self._matches(pattern, folders, path, partial(matching, pattern), "/" in pattern))

    def _opened(self, name: str, path: Path, folders: Sequence[Path]) -> None:
        """The file or folder that a string of a Python file names, if any: most strings name none."""
        if not _may_be_a_name(name) or name.startswith(SYSTEM) or not name.strip("./"):
            return
        far = "." in name or "/" in name  # else a word may be a folder of the current directory by chance
        if file := self._resolved(name, folders, path, Path.is_file, far):
            self.files.add(file)
        elif not name.startswith(("/", "~", ".")) and (
            inner := self._resolved(name, folders, path, partial(_is_beside, path), "/" in name)
        ):
            self.files.update(_below(inner))

    def _file(self, name: str, path: Path) -> Path | None:
        """The file that a string of a YAML file names, if any."""
        return self._resolved(name, [path.parent], path, Path.is_file) if _may_be_a_name(name) else None

    def _resolved(
        self, name: str, folders: Sequence[Path], path: Path, kind: Callable[[Path], bool], from_cwd: bool = True
    ) -> Path | None:
        """What the file `path` names, in the first of `folders` and the current directory that has it. Raises
        UserError."""
        matches = self._matches(
            name, folders, path, lambda base: [it] if kind(it := _absolute(base, name)) else [], from_cwd
        )
        return matches[0] if matches else None

    def _matches(
        self,
        name: str,
        folders: Sequence[Path],
        path: Path,
        look: Callable[[Path], list[Path]],
        from_cwd: bool = True,
    ) -> list[Path]:
        for base in dict.fromkeys([*folders, *([self.cwd] if from_cwd else [])]):
            if not (files := look(base)):
                continue
            for file in files:
                self._check(file, path)
            if Path(name).is_absolute():
                raise UserError(f"evaluate: {path}: {name!r}: name it relative to this file: other machines lack it")
            self.from_cwd |= base not in folders
            return files
        return []

    def _check(self, file: Path, path: Path) -> None:
        """Raises UserError for a file outside of the folders that may be read, and for a hidden one."""
        inside = [folder for folder in self.allowed if file.is_relative_to(folder)]
        if not inside:
            raise UserError(
                f"evaluate: {path}: names {file}, outside of {' and '.join(map(str, dict.fromkeys(self.allowed)))}: "
                "copy it there, or run from a folder that contains both"
            )
        nearest = max(inside, key=lambda folder: len(folder.parts))
        if any(part.startswith(".") for part in file.relative_to(nearest).parts):
            raise UserError(f"evaluate: {path}: names the hidden file {file}: rename it, or leave it out")


def with_local_data(config: dict[str, Any], folder: Path, root: Path) -> dict[str, Any]:
    """A task's config with absolute paths for its data: files and folders below `folder`, or else below `root`."""
    resolved, source = dict(config), config.get("dataset_path")
    if isinstance(source, str) and source not in BUILDERS:
        if not (path := _folder(source, folder, root)):
            return resolved
        resolved["dataset_path"] = str(path)
    if not isinstance(kwargs := config.get("dataset_kwargs"), dict):
        return resolved
    kwargs = {key: _local_name(value, folder, root) for key, value in kwargs.items()}
    bases = [folder, root]
    if isinstance(name := kwargs.get("data_dir"), str) and (path := _folder(name, folder, root)):
        kwargs["data_dir"] = str(path)
        bases.insert(0, path)
    if "data_files" in kwargs:
        bases = [Path(resolved["dataset_path"]), *bases] if source and source not in BUILDERS else bases
        kwargs["data_files"] = _local_files(kwargs["data_files"], bases)
    return resolved | {"dataset_kwargs": kwargs}


def _local_name(value: Any, folder: Path, root: Path) -> Any:
    """An argument of a task's own data function that names a file."""
    if isinstance(value, str) and _may_be_a_name(value):
        return next((str(base / value) for base in (folder, root) if (base / value).is_file()), value)
    return value


def _local_files(value: Any, bases: Sequence[Path]) -> Any:
    if isinstance(value, dict):
        return {key: _local_files(item, bases) for key, item in value.items()}
    if isinstance(value, list):
        return [file for item in value for file in as_list(_local_files(item, bases))]
    if not isinstance(value, str) or "://" in value:
        return value
    paths = next((files for base in bases if (files := matching(value, base))), None)
    if paths is None:
        return value
    return str(paths[0]) if len(paths) == 1 else [str(file) for file in paths]


def as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def matching(pattern: str, base: Path) -> list[Path]:
    """The files that a name or a glob matches, sorted; of a folder all but hidden ones."""
    if not _may_be_a_name(pattern):
        return []
    whole = _absolute(base, pattern)
    if whole.is_file():
        return [whole]
    if whole.is_dir():
        return _below(whole)
    if not glob.has_magic(pattern):
        return []
    paths = (Path(name) for name in glob.glob(pattern, root_dir=base, recursive=True))  # noqa: PTH207  no hidden files
    return sorted(path for name in paths if (path := _absolute(base, str(name))).is_file())


def _is_beside(path: Path, folder: Path) -> bool:
    """Whether it is a folder, and not one that contains the file."""
    return folder.is_dir() and not path.is_relative_to(folder)


def _pattern(node: ast.AST) -> str:
    """The text of a string in Python, with * for what is not known before it runs."""
    match node:
        case ast.Constant(value=str() as text):
            return PLACEHOLDER.sub("*", text)
        case ast.JoinedStr(values=parts):
            return "".join(map(_pattern, parts))
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _pattern(left) + _pattern(right)
        case ast.BinOp(left=left, op=ast.Mod()):
            return _pattern(left)
    return "*"


def _below(folder: Path) -> list[Path]:
    """All files in a folder, except hidden ones and those in Baton's home; links are followed."""
    paths = []
    seen = {os.path.realpath(home_path())}
    for place, folders, files in os.walk(folder, followlinks=True):
        folders[:] = sorted(name for name in folders if not name.startswith((".", "__pycache__")))
        if (real := os.path.realpath(place)) in seen:
            folders.clear()
            continue
        seen.add(real)
        paths += [Path(place, name) for name in files if not name.startswith(".")]
    return sorted(path for path in paths if path.is_file())


def _folder(name: str, folder: Path, root: Path) -> Path | None:
    if not _may_be_a_name(name):
        return None
    return next((path for base in (folder, root) if (path := _absolute(base, name)).is_dir()), None)


def _may_be_a_name(text: str) -> bool:
    return 0 < len(text) < LONGEST_NAME and not {"\n", "\0"} & set(text) and "://" not in text


def _absolute(base: Path, name: str) -> Path:
    """Without `..`, and without following links: a link may lead to data elsewhere."""
    return Path(os.path.normpath(base / Path(name).expanduser()))


def _text(path: Path) -> str | None:
    """None for a file that is not UTF-8."""
    try:
        return path.read_bytes().decode()
    except UnicodeDecodeError:
        return None


@cache
def _digest(path: Path, size: int, *times: int) -> str:
    """BLAKE3 of a file with this size and these times."""
    return blake3().update_mmap(path).hexdigest() if size else blake3().hexdigest()


def _defined_below(folder: Path) -> dict[str, list[Path]]:
    """The YAML files of a folder and those below it by what they define: the nearest of each task or group, and all
    tasks of a tag."""
    named: dict[str, list[Path]] = {}
    tagged: dict[str, list[Path]] = {}
    for path in sorted(_below(folder), key=lambda path: len(path.parts)):
        if path.suffix not in SUFFIXES:
            continue
        try:
            top = _mapping(yaml.compose(path.read_bytes().decode()))
        except (OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError):
            continue  # not a task; if it is one, loading the group says so
        name = _scalar(top.get("task" if "class" in top else "group")) or _scalar(top.get("task"))
        nearest = named.setdefault(name, [path])
        if path not in nearest and len(path.parts) == len(nearest[0].parts):
            nearest.append(path)  # a conflict, which is reported when they are loaded
        for tag in _scalars(top.get("tag")):
            tagged.setdefault(tag, []).append(path)
    return tagged | named


def _twice(node: yaml.Node | None) -> str:
    """A key that occurs twice in a mapping, at any depth; empty if there is none."""
    for each in _all_nodes(node):
        keys = [_scalar(key) for key, _ in each.value if key.tag != MERGE] if isinstance(each, yaml.MappingNode) else []
        if found := next((key for number, key in enumerate(keys) if key and key in keys[:number]), ""):
            return found
    return ""


def _nodes(node: yaml.Node | None) -> Iterator[yaml.ScalarNode]:
    """Every scalar below a node."""
    return (each for each in _all_nodes(node) if isinstance(each, yaml.ScalarNode))


def _all_nodes(node: yaml.Node | None) -> Iterator[yaml.Node]:
    """A node and those below it, each once: an alias may repeat one, also in itself."""
    waiting, seen = [node], set[int]()
    while waiting:
        node = waiting.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if node is not None:
            yield node
        if isinstance(node, yaml.SequenceNode):
            waiting += reversed(node.value)
        elif isinstance(node, yaml.MappingNode):
            waiting += [value for _, value in reversed(node.value)]


def _scalars(node: yaml.Node | None) -> list[str]:
    return [scalar.value for scalar in _nodes(node)]


def _scalar(node: yaml.Node | None) -> str:
    return str(node.value) if isinstance(node, yaml.ScalarNode) else ""


def _mapping(node: yaml.Node | None, within: tuple[yaml.Node, ...] = ()) -> dict[str, yaml.Node]:
    """A mapping's values, with those of the mappings that it merges (<<)."""
    if not isinstance(node, yaml.MappingNode) or node in within:
        return {}
    values, merged = dict[str, yaml.Node](), dict[str, yaml.Node]()
    for key, value in node.value:
        if key.tag == MERGE:
            for each in reversed(value.value) if isinstance(value, yaml.SequenceNode) else [value]:
                merged |= _mapping(each, (*within, node))
        else:
            values[_scalar(key)] = value
    return merged | values
