"""lm-eval tasks that are YAML files: their text travels in the spec, with the files beside them that they name.

So it is in the cache key, reaches every pod without an upload, and is recorded. A file is named by a scalar of the YAML
(`include: base.yaml`, `data_files: {test: test.jsonl}`) or by a function (`!function utils.score`), and stands beside
the YAML or below its folder.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from infra.errors import Stopped

LARGEST_BYTES = 1_000_000  # of all files together: they are part of every message that holds the spec
SUFFIXES = (".yaml", ".yml")


def is_file_name(task: str) -> bool:
    return task.endswith(SUFFIXES)


def gathered(tasks: list[str]) -> tuple[list[str], dict[str, str]]:
    """The tasks, those in files by their names below a common folder; and the text of all files, by such names. Raises
    Stopped."""
    paths = {task: Path(task).expanduser().absolute() for task in tasks if is_file_name(task)}
    found: dict[Path, str] = {}
    for path in paths.values():
        _add(path, found)
    if not found:
        return tasks, {}
    root = Path(os.path.commonpath([path.parent for path in found]))
    names = {path: path.relative_to(root).as_posix() for path in found}
    return [names[paths[task]] if task in paths else task for task in tasks], {
        names[path]: text for path, text in sorted(found.items())
    }


def write(files: dict[str, str], folder: Path) -> None:
    """The files, below the folder."""
    for name, text in files.items():
        path = folder / name
        if not path.resolve().is_relative_to(folder.resolve()):
            raise Stopped(f"evaluate: {name}: a task's file is not below a folder")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def with_absolute_data(config: dict[str, Any], folder: Path) -> dict[str, Any]:
    """A task's config whose `data_files` are found from anywhere: those that stand beside the YAML."""
    told = config.get("dataset_kwargs") or {}
    if "data_files" not in told:
        return config
    return config | {"dataset_kwargs": told | {"data_files": _absolute(told["data_files"], folder)}}


def _absolute(named: Any, folder: Path) -> Any:
    if isinstance(named, dict):
        return {key: _absolute(value, folder) for key, value in named.items()}
    if isinstance(named, list):
        return [_absolute(value, folder) for value in named]
    return str(folder / named) if (folder / named).is_file() else named


def _add(path: Path, found: dict[Path, str]) -> None:
    if path in found:
        return
    try:
        found[path] = path.read_text(encoding="utf-8")
        size = sum(len(text.encode()) for text in found.values())
        if size > LARGEST_BYTES:
            raise Stopped(
                f"evaluate: {path}: the lm-eval tasks' files have more than {LARGEST_BYTES / 1e6:g} MB together: name "
                "a set on the Hugging Face hub as their data, or a smaller file"
            )
        if path.suffix in SUFFIXES:
            for other in _named(yaml.compose(found[path])):
                beside = path.parent / other
                if beside.is_file():
                    _add(beside, found)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        why = getattr(error, "strerror", None) or str(error).partition("\n")[0]
        raise Stopped(f"evaluate: {path}: a YAML file of an lm-eval task, and the files it names: {why}") from error


def _named(node: yaml.Node | None) -> Iterator[str]:
    """Every file that a scalar of the YAML may name."""
    if isinstance(node, yaml.ScalarNode):
        if node.tag == "!function":
            yield node.value.rpartition(".")[0].replace(".", "/") + ".py"
        elif 0 < len(node.value) < 256 and "\n" not in node.value and ".." not in node.value:
            yield node.value
    elif isinstance(node, yaml.SequenceNode):
        for each in node.value:
            yield from _named(each)
    elif isinstance(node, yaml.MappingNode):
        for _, value in node.value:
            yield from _named(value)
