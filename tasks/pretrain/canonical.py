"""A checkpoint's content without what chance and this run alone put into it: the artifact's digest must
not depend on them. Two runs that end in the same state, on the same layout, have the same content."""

import os
import pickle
import shutil
import sys
from pathlib import Path
from typing import Any

import torch

from tasks.manifest import MANIFEST


def copy_content(path: Path, target: Path) -> None:
    """Copy a checkpoint's files without its manifest and, in .metadata, the path, a random id, and the
    order in which the ranks' writers happened to end. The files must have been checked, or be ours."""
    # linked, not copied: the checkpoint stays whole should we be killed now
    shutil.copytree(
        path, target, copy_function=os.link, ignore=shutil.ignore_patterns(MANIFEST, ".metadata", "common.pt")
    )
    common = torch.load(path / "common.pt", map_location="cpu", weights_only=True)
    torch.save(_rebuilt(common), target / "common.pt")
    metadata = pickle.loads((path / ".metadata").read_bytes())
    metadata.storage_meta = None
    metadata.storage_data = dict(sorted(metadata.storage_data.items(), key=lambda item: repr(item[0])))
    with (target / ".metadata").open("wb") as stream:
        pickler = pickle.Pickler(stream)
        pickler.fast = True  # no references to equal objects: which are one object is chance as well
        pickler.dump(metadata)


def _rebuilt(value: Any) -> Any:
    """The same value of new objects: a pickle also says which equal objects are one, and a resumed run
    shares others than an undisturbed one."""
    if isinstance(value, dict):
        return {_rebuilt(key): _rebuilt(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_rebuilt(item) for item in value)
    if isinstance(value, str):
        return sys.intern(value)
    return value.clone() if isinstance(value, torch.Tensor) else value
