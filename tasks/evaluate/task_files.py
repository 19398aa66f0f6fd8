"""Gather the files of lm-eval tasks in YAML files, which are all files in each YAML file's folder.

    files = gathered(["tasks/mine.yaml"])          # on the machine that starts the run
    place(folder, texts, digests, where)           # where it runs: the same files below `folder`

So a changed file changes the cache key, and the files reach every pod. The folder has the YAML files that a task
includes, the members of its group, its data, and its Python files with the modules that they import; hidden files are
left out. A task that names a file elsewhere is refused.

Small files are embedded as long as all texts have at most 1 MB. The others are identified by their BLAKE3 and read
where they are, or from an archive that was uploaded for the run.
"""

import ast
import glob
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from blake3 import blake3

from baton.infra.errors import UserError
from baton.infra.paths import home_path
from baton.infra.storage.address import digest_of, fetch
from baton.tasks.core.job import StageError
from baton.tasks.user_code.functions import LARGEST_BYTES, imported, inside, module_file, write_files

SUFFIXES = (".yaml", ".yml")
SYSTEM = ("/bin/", "/dev/", "/etc/", "/lib", "/proc/", "/sys/", "/usr/")  # folders that every machine has
MOST_FILES = 10_000
LONGEST_NAME = 1024  # characters of a string that may name a file
# Builders of `datasets` for files of one kind, with which data_files are local files or addresses
BUILDERS = (
    "json", "csv", "parquet", "arrow", "text", "pandas", "xml", "webdataset", "imagefolder", "audiofolder", "conll",
)  # fmt: skip


def is_file_name(task: str) -> bool:
    return task.endswith(SUFFIXES)


@dataclass(frozen=True)
class Gathered:
    """Tasks, and all of their files. Files are named relative to `root`."""

    tasks: list[str]
    root: Path
    texts: dict[str, str]
    digests: dict[str, str]  # BLAKE3 of the files that are not in `texts`


def gathered(tasks: Sequence[str]) -> Gathered:
    """Find the files of the tasks. Raises UserError."""
    paths = {task: _absolute(Path.cwd(), task) for task in tasks if is_file_name(task)}
    if not paths:
        return Gathered(list(tasks), Path.cwd(), {}, {})
    folders = sorted({path.parent for path in paths.values()})
    root = Path(os.path.commonpath(folders))
    files = sorted({file for folder in folders for file in _files_of(folder)})
    names = {path: path.relative_to(root).as_posix() for path in files}
    texts: dict[str, str] = {}
    digests: dict[str, str] = {}
    size = 0
    for path in sorted(files, key=lambda path: (path.stat().st_size, path)):
        about = path.stat()
        text = _text(path) if size + about.st_size <= LARGEST_BYTES else None
        if text is None:
            digests[names[path]] = _digest(path, about.st_size, about.st_mtime_ns, about.st_ctime_ns)
        else:
            texts[names[path]], size = text, size + about.st_size
    tasks = [names[paths[task]] if task in paths else task for task in tasks]
    return Gathered(tasks, root, dict(sorted(texts.items())), dict(sorted(digests.items())))


def _files_of(folder: Path) -> list[Path]:
    """Return the files of a folder with tasks. Raises UserError."""
    if Path.cwd().is_relative_to(folder):
        raise UserError(
            f"evaluate: {folder}: an lm-eval task's folder is part of its evaluation, and this one contains the "
            "current directory: put the task, with its data and Python files, into a separate folder"
        )
    files = _below(folder)
    if len(files) > MOST_FILES:
        raise UserError(
            f"evaluate: {folder}: an lm-eval task's folder is part of its evaluation, and this one has "
            f"{len(files)} files, more than {MOST_FILES}: put the task into a separate folder"
        )
    for path in files:
        if path.suffix == ".py":
            _check_python(path, folder)
    return files


def _check_python(path: Path, folder: Path) -> None:
    """Raise UserError for a Python file that imports from the current directory, or names a file of this machine
    outside of `folder`: neither would be part of the evaluation."""
    try:
        text = path.read_bytes().decode()
        tree = ast.parse(text)
        modules = imported(text, path.name)
    except (OSError, UserError, SyntaxError, ValueError, RecursionError):
        return  # loading the task reports it, if the task uses it
    for name in modules:
        if module_file(Path.cwd(), name) and not any(module_file(each, name) for each in (path.parent, folder)):
            raise UserError(f"evaluate: {path}: imports {name} from {Path.cwd()}: {_COPY.format(folder)}")
    for node in ast.walk(tree):
        name = node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
        if name.startswith(("/", "~/", "../")) and not name.startswith(SYSTEM) and _may_be_a_name(name):
            named = _absolute(path.parent, name)
            if named.is_file() and not named.is_relative_to(folder):
                raise UserError(f"evaluate: {path}: names {named}: {_COPY.format(folder)}")


_COPY = "copy it into {}, all of which is part of the evaluation, and name it relative to this file"


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


def with_local_data(config: dict[str, Any], folder: Path, root: Path) -> dict[str, Any]:
    """Return a task's config with absolute paths for its data: files and folders below `folder`, or else below `root`.
    Raises StageError for a path outside of `root`, which is not part of the evaluation."""
    for named in _strings([config.get("dataset_path"), config.get("dataset_kwargs")]):
        check_inside(named, folder, root)
    resolved, source = dict(config), config.get("dataset_path")
    if isinstance(source, str) and source not in BUILDERS:
        if not (path := _folder(source, folder, root)):
            return resolved
        resolved["dataset_path"] = str(path)
    if not isinstance(kwargs := config.get("dataset_kwargs"), dict):
        return resolved
    others = kwargs.keys() - {"data_dir", "data_files"}
    kwargs = kwargs | {key: _local_name(kwargs[key], folder, root) for key in others}
    bases = [folder, root]
    if isinstance(name := kwargs.get("data_dir"), str) and (path := _folder(name, folder, root)):
        kwargs["data_dir"] = str(path)
        bases.insert(0, path)
    if "data_files" in kwargs:
        bases = [Path(resolved["dataset_path"]), *bases] if source and source not in BUILDERS else bases
        kwargs["data_files"] = _local_files(kwargs["data_files"], bases)
    return resolved | {"dataset_kwargs": kwargs}


def _local_name(value: Any, folder: Path, root: Path) -> Any:
    """Return an argument of a task's own data function, with the absolute path if it names a file."""
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
    """Return the files that a name or a glob matches, sorted; for a folder, all files except hidden ones."""
    if not _may_be_a_name(pattern):
        return []
    named = _absolute(base, pattern)
    if named.is_file():
        return [named]
    if named.is_dir():
        return _below(named)
    if not glob.has_magic(pattern):
        return []
    paths = (Path(name) for name in glob.glob(pattern, root_dir=base, recursive=True))  # noqa: PTH207  no hidden files
    return sorted(path for name in paths if (path := _absolute(base, str(name))).is_file())


def _below(folder: Path) -> list[Path]:
    """Return all files in a folder, except hidden ones and those in Baton's home; links are followed."""
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


def check_inside(name: str, folder: Path, root: Path) -> None:
    """Raise StageError for the absolute path of an existing file or folder, and for a name in `folder` that leaves
    `root`."""
    is_absolute = name.startswith(("/", "~/")) and os.path.lexists(Path(name).expanduser())
    if is_absolute or (name.startswith("../") and not _absolute(folder, name).is_relative_to(root)):
        raise StageError(
            f"{name!r}: is outside of the YAML file's folder, all of which is part of the evaluation: copy it there, "
            f"and name it {Path(name).name}"
        )


def _strings(value: Any) -> Iterator[str]:
    """Yield every text in lists and dictionaries."""
    if isinstance(value, str):
        yield value
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _strings(item)


def _may_be_a_name(text: str) -> bool:
    return 0 < len(text) < LONGEST_NAME and not {"\n", "\0"} & set(text) and "://" not in text


def _absolute(base: Path, name: str) -> Path:
    """Return an absolute path without `..`. Links are not followed, since a link may lead to data elsewhere."""
    return Path(os.path.normpath(base / Path(name).expanduser()))


def _text(path: Path) -> str | None:
    """Return a file's text, or None if it is not UTF-8."""
    try:
        return path.read_bytes().decode()
    except UnicodeDecodeError:
        return None


@cache
def _digest(path: Path, size: int, *times: int) -> str:
    """Return the BLAKE3 of a file with this size and these times."""
    return blake3().update_mmap(path).hexdigest() if size else blake3().hexdigest()
