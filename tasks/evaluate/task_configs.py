"""Register the tasks of YAML files in lm-eval, with paths and modules below a folder of copies.

lm-eval resolves a task's data relative to the current directory, finds a group's members only in given folders, and
lets a task's Python file import only installed modules. Here, a task may also name data and import modules beside its
file, and a group may have members that other files of the spec define.
"""

import importlib
import json
import os
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from functools import cache
from importlib.metadata import version
from pathlib import Path, PurePosixPath
from typing import Any

import lm_eval.tasks
import yaml
from lm_eval.tasks import TaskManager
from lm_eval.tasks._index import Entry, Kind, TaskIndex
from lm_eval.tasks._yaml_loader import load_yaml

from baton.infra.paths import baton_home
from baton.infra.storage.durable import make_folder, write_json
from baton.tasks.core.job import StageError
from baton.tasks.evaluate.task_files import as_list, check_inside, is_file_name, with_local_data

SHIPPED = Path(lm_eval.tasks.__file__).parent
MERGE = "tag:yaml.org,2002:merge"


def register(tasks: Sequence[str], files: Collection[str], folder: Path) -> tuple[TaskManager, list[str]]:
    """Return a manager that knows the tasks, and the name of each. `files` are the tasks' files below `folder`. Raises
    StageError."""
    local: dict[str, Entry] = {}
    listed = [task for task in tasks if is_file_name(task)]
    names = {task: task for task in tasks}
    waiting = [*dict.fromkeys(listed)]
    defined = _defined(files, folder) if waiting else {}
    for file in waiting:  # the list grows by the files that define members of groups
        with _imports(folder / file, folder, files):
            config = load_config(folder / file, folder)
        named = config.get("group" if _is_group(config) else "task")
        if not isinstance(named, str):
            raise StageError(f"{file}: needs `task: <name>` or `group: <name>`, and has {named!r}")
        if named in local:
            raise StageError(f"{file}: another file has the name {named!r} too; rename one of them")
        names[file] = named
        TaskIndex.process_cfg(config, folder / file, local)
        members = [other for name in _members(config) for other in _nearest(defined.get(name, {}), file)]
        waiting += [other for other in dict.fromkeys(members) if other not in waiting]
    for entry in local.values():
        entry.yaml_path = None  # else lm-eval would read the file again, and not find its data
    used = {names[task] for task in tasks} | {name for entry in local.values() for name in _members(entry.cfg or {})}
    manager = TaskManager(include_defaults=False)
    manager.task_index.update(_shipped(frozenset(used - local.keys())) | local)
    for name in map(names.__getitem__, tasks):
        if name not in manager.task_index:
            similar = get_close_matches(name, [*local, *_folders()])
            like = f"; did you mean {' or '.join(similar)}?" if similar else ""
            raise StageError(f"{name!r} is neither a task of lm-eval (`lm_eval ls tasks`) nor a YAML file{like}")
    _check_supported(map(names.__getitem__, tasks), manager.task_index)
    return manager, [names[task] for task in tasks]


def _check_supported(names: Iterable[str], index: Mapping[str, Entry]) -> None:
    """Raise StageError for a task that Baton does not run."""
    waiting, seen = [*names], set[str]()
    while waiting:
        name = waiting.pop()
        if name in seen or name not in index:
            continue
        seen.add(name)
        config = index[name].cfg or {}
        waiting += [*_members(config), *(index[name].tags if index[name].kind == Kind.TAG else ())]
        if config.get("unsafe_code"):
            raise StageError(
                f"{name!r} is marked as unsafe: it runs programs that the model writes, without a sandbox. Use rows "
                "with tests and the reward code_tests instead"
            )
        if media := [field for field in ("doc_to_image", "doc_to_audio") if config.get(field)]:
            raise StageError(f"{name!r} has {media[0]}: only text tasks can be evaluated")


def _nearest(defining: Mapping[str, bool], file: str) -> list[str]:
    """Return those of the YAML files that define a member of the group in `file` which are in its folder or nearest
    below it, and all that define the member as a tag."""
    below = [other for other in defining if PurePosixPath(other).is_relative_to(PurePosixPath(file).parent)]
    depth = min((other.count("/") for other in below), default=0)
    return [other for other in below if defining[other] or other.count("/") == depth]


def _defined(files: Collection[str], folder: Path) -> dict[str, dict[str, bool]]:
    """Return, for each task, group and tag, the YAML files that define it, and whether it is a tag there."""
    found: dict[str, dict[str, bool]] = {}
    for file in sorted(filter(is_file_name, files)):
        try:
            config = load_yaml(folder / file, resolve_func=False, recursive=False)
        except (OSError, ValueError, yaml.YAMLError, RecursionError):
            continue  # not a task; if a group needs it, loading the group reports that it is missing
        if isinstance(config, dict):
            for tag in as_list(config.get("tag") or []):
                found.setdefault(str(tag), {})[file] = True
            if isinstance(named := config.get("group" if _is_group(config) else "task"), str):
                found.setdefault(named, {})[file] = False
    return found


def load_config(path: Path, root: Path) -> dict[str, Any]:
    """Load a task's or a group's config with the files that it includes. Paths in each file are relative to the file,
    or else to `root`."""
    config: dict[str, Any] = {}
    if key := _repeated_key(yaml.compose(path.read_text(encoding="utf-8")), set()):
        raise StageError(f"{path.name}: {key} occurs twice in one mapping, of which lm-eval uses the last; keep one")
    for included in _includes(path, root):
        config |= load_config(included, root)
    config_of_file = load_yaml(path, recursive=False)
    config_of_file.pop("include", None)
    return config | _with_local_data(config_of_file, path.parent, root)


def _includes(path: Path, root: Path) -> list[Path]:
    """Return the files that a YAML file includes."""
    named = load_yaml(path, resolve_func=False, recursive=False).get("include") or [] if is_file_name(path.name) else []
    for name in as_list(named):
        check_inside(name, path.parent, root)
    return [
        Path(os.path.normpath(path.parent / name if (path.parent / name).is_file() else root / name))
        for name in as_list(named)
    ]


def _repeated_key(node: yaml.Node | None, seen: set[int]) -> str:
    """Return a key that occurs twice in a mapping, at any depth, or "" if there is none."""
    if id(node) in seen:
        return ""  # an alias may repeat a node, even within itself
    seen.add(id(node))
    below: list[yaml.Node] = node.value if isinstance(node, yaml.SequenceNode) else []
    if isinstance(node, yaml.MappingNode):
        keys = Counter(key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode) and key.tag != MERGE)
        if repeated := [str(key) for key, times in keys.items() if times > 1]:
            return repeated[0]
        below = [value for _, value in node.value]
    return next(filter(None, (_repeated_key(each, seen) for each in below)), "")


def _with_local_data(config: dict[str, Any], folder: Path, root: Path) -> dict[str, Any]:
    """Return a config with absolute paths for its data and that of a group's members."""
    resolved = with_local_data(config, folder, root)
    if isinstance(members := resolved.get("task"), list):
        resolved["task"] = [
            _with_local_data(member, folder, root) if isinstance(member, dict) else member for member in members
        ]
    return resolved


def _members(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names of a group's members, including those in groups within it."""
    for member in as_list(config.get("task") if _is_group(config) else None):
        if isinstance(member, dict):
            yield from _members(member) if _is_group(member) else [str(member.get("task"))]
        elif member:
            yield str(member)


def _is_group(config: Mapping[str, Any]) -> bool:
    """Return whether a config is a group. A task of a Python class may name the group that it is in."""
    return "group" in config and "class" not in config


@cache
def _shipped(names: frozenset[str]) -> dict[str, Entry]:
    """Return lm-eval's own tasks, groups and tags with these names, and their members."""
    index: dict[str, Entry] = {}
    waiting, indexed = {*names}, set[str]()
    while waiting:
        folders = {folder for name in waiting for folder in _folders().get(name, ())} - indexed
        index |= TaskIndex.build([SHIPPED / folder for folder in sorted(indexed | folders)]) if folders else {}
        indexed |= folders
        entries = [index[name] for name in waiting if name in index]
        members = {member for entry in entries for member in (*_members(entry.cfg or {}), *entry.tags)}
        waiting = {name for name in members if not {*_folders().get(name, ())} <= indexed}
    return index


@cache
def _folders() -> dict[str, list[str]]:
    """Return the folders of lm-eval's tasks by the names that their files define; for a tag, those of all its tasks.
    lm-eval takes ten seconds to read its 14,000 files, so the result is cached in Baton's home."""
    path = baton_home() / "lm_eval" / f"{version('lm-eval')}.json"
    if not path.exists():
        index = TaskManager().task_index
        folders = {name: _top(entry.yaml_path) for name, entry in index.items() if entry.yaml_path}
        of_tags = {
            name: sorted({folders[task] for task in entry.tags if task in folders})
            for name, entry in index.items()
            if entry.kind == Kind.TAG
        }
        make_folder(path.parent)
        write_json(path, {name: [folder] for name, folder in folders.items()} | of_tags)
    folders_by_name: dict[str, list[str]] = json.loads(path.read_text())
    return folders_by_name


def _top(path: Path) -> str:
    return path.relative_to(SHIPPED).parts[0]


@contextmanager
def _imports(path: Path, folder: Path, files: Collection[str]) -> Iterator[None]:
    """Let the Python files of a task import modules beside them, beside the YAML file, and in `folder`. Installed
    modules come first, since the files' modules must not replace them for others."""
    beside = [folder / PurePosixPath(file).parent for file in files if file.endswith(".py")]
    ours = dict.fromkeys(map(str, [path.parent, *beside, folder]))
    sys.path[:] = [place for place in sys.path if place not in ours] + [*ours]
    importlib.invalidate_caches()
    yield
    for name, module in [*sys.modules.items()]:  # another task may have a module of the same name
        if "/" not in name and Path(getattr(module, "__file__", None) or "/").is_relative_to(folder):
            del sys.modules[name]
