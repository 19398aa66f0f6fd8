"""Embed lm-eval tasks given as YAML files in the spec, together with the files they refer to.

Thus they are part of the cache key, reach every pod without an upload, and are recorded. A YAML refers to a file by a
scalar (`include: base.yaml`, `data_files: {test: test.jsonl}`) or a function (`!function utils.score`); the file is in
the YAML's folder or below it.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from infra.errors import Stopped
from tasks.functions import LARGEST_BYTES

SUFFIXES = (".yaml", ".yml")


def is_file_name(task: str) -> bool:
    return task.endswith(SUFFIXES)


def gathered(tasks: list[str]) -> tuple[list[str], dict[str, str]]:
    """Return the tasks, with files named relative to their common folder, and the text of all files by such names.
    Raises Stopped."""
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


def with_absolute_data(config: dict[str, Any], folder: Path) -> dict[str, Any]:
    """A task's config with absolute paths for those of its `data_files` that exist below the YAML's folder."""
    kwargs = config.get("dataset_kwargs") or {}
    if "data_files" not in kwargs:
        return config
    return config | {"dataset_kwargs": kwargs | {"data_files": _absolute(kwargs["data_files"], folder)}}


def _absolute(data_files: Any, folder: Path) -> Any:
    if isinstance(data_files, dict):
        return {key: _absolute(value, folder) for key, value in data_files.items()}
    if isinstance(data_files, list):
        return [_absolute(value, folder) for value in data_files]
    return str(folder / data_files) if (folder / data_files).is_file() else data_files


def _add(path: Path, found: dict[Path, str]) -> None:
    if path in found:
        return
    try:
        found[path] = path.read_text(encoding="utf-8")
        size = sum(len(text.encode()) for text in found.values())
        if size > LARGEST_BYTES:
            raise Stopped(
                f"evaluate: {path}: the lm-eval tasks' files exceed {LARGEST_BYTES / 1e6:g} MB in total: use a data "
                "set on the Hugging Face Hub, or a smaller file"
            )
        if path.suffix in SUFFIXES:
            for other in _named(yaml.compose(found[path])):
                beside = path.parent / other
                if beside.is_file():
                    _add(beside, found)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        reason = getattr(error, "strerror", None) or str(error).partition("\n")[0]
        raise Stopped(f"evaluate: {path}: cannot read this file of an lm-eval task: {reason}") from error


def _named(node: yaml.Node | None) -> Iterator[str]:
    """Every scalar of the YAML that may be a file name."""
    if isinstance(node, yaml.ScalarNode):
        if node.tag == "!function":
            yield node.value.rpartition(".")[0].replace(".", "/") + ".py"
        elif 0 < len(node.value) < 256 and "\n" not in node.value and ".." not in node.value:
            yield node.value
    elif isinstance(node, yaml.SequenceNode):
        for item in node.value:
            yield from _named(item)
    elif isinstance(node, yaml.MappingNode):
        for _, value in node.value:
            yield from _named(value)
