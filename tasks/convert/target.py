"""Check a conversion's target. It may not be a symbolic link, nor overlap an input, and an existing folder is replaced
only with --replace and if it is a model or checkpoint."""

import os
from collections.abc import Iterable
from pathlib import Path

from baton.tasks.convert.torch_dist import METADATA
from baton.tasks.core.manifest import RECORD
from baton.tasks.models.errors import ConversionError
from baton.tasks.models.fields import read_json

ACCOUNT = "conversion.json"  # under record/


def normalized(target: Path) -> Path:
    """Return `target` as an absolute path that has a name; its last component is not resolved."""
    path = target.resolve() if target.name in ("", "..") else target.parent.resolve() / target.name
    if not path.name:
        raise ConversionError(f"{target}: is the root folder; choose another target")
    return path


def partial_folder(target: Path) -> Path:
    return target.with_name(target.name + ".partial")


def check_target(target: Path, replace: bool, inputs: Iterable[Path]) -> None:
    """Raise ConversionError unless a conversion of `inputs` may write to a normalized `target`."""
    places = target, partial_folder(target)
    for place in places:
        _refuse_link(place)
    for given in inputs:
        for place in places:
            if _inside(place, given) or any(_inside(path, place) for path in _with_linked_files(given)):
                raise ConversionError(
                    f"{place} and its input {given} overlap; choose a target that is neither in nor above the input"
                )
    check_existing(target, replace)


def check_existing(target: Path, replace: bool) -> None:
    """Raise ConversionError if `target` exists and may not be replaced."""
    _refuse_link(target)
    if not os.path.lexists(target):
        return
    if not replace:
        raise ConversionError(f"{target}: exists; choose another target, or pass --replace")
    if not _replaceable(target):
        raise ConversionError(
            f"{target}: is not a model or a checkpoint (it has neither a config.json with a model_type, a {METADATA} "
            f"nor a {RECORD}/{ACCOUNT}), so --replace does not delete it; choose another target, or delete it yourself"
        )


def _refuse_link(place: Path) -> None:
    if place.is_symlink():
        raise ConversionError(f"{place}: is a symbolic link to {place.readlink()}; choose another target")


def _inside(path: Path, folder: Path) -> bool:
    """Return whether `path` is `folder` or within it, under any name."""
    path = path.resolve()
    return folder.exists() and any(place.exists() and place.samefile(folder) for place in (path, *path.parents))


def _with_linked_files(folder: Path) -> list[Path]:
    """Return a folder and the symbolic links in it, since all files in the hub's cache are links."""
    return [folder, *(path for path in folder.iterdir() if path.is_symlink())] if folder.is_dir() else [folder]


def _replaceable(folder: Path) -> bool:
    if not folder.is_dir():
        return False
    known = (folder / RECORD / ACCOUNT, folder / METADATA, folder / "checkpoint" / METADATA)
    return any(path.is_file() for path in known) or _is_model(folder) or not any(folder.iterdir())


def _is_model(folder: Path) -> bool:
    try:
        return "model_type" in read_json(folder / "config.json")
    except ConversionError:
        return False
