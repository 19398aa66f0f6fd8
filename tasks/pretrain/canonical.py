"""Copy a checkpoint without the parts that are random or specific to a run, so that the artifact's digest is
reproducible: two runs that end in the same state on the same layout have the same content."""

import os
import pickle
import shutil
import sys
from enum import Enum
from pathlib import Path
from typing import Any

import torch

from baton.tasks.core.manifest import MANIFEST


class MetadataPickler(pickle.Pickler):
    """Pickles a checkpoint's `.metadata` to the same bytes in every Python version, since its digest names the
    checkpoint.

    It writes a member of an enumeration by its value, as most versions of Python do. Python 3.11.0 to 3.11.3, which
    include Debian 12's, write getattr(class, name); the class can be removed when none of these is supported."""

    def reducer_override(self, value: Any) -> Any:
        return (type(value), (value.value,)) if isinstance(value, Enum) else NotImplemented


def copy_content(path: Path, target: Path) -> None:
    """Copy a checkpoint's files without its manifest and, in .metadata, without the path, a random id, and the order in
    which the ranks' writers finished. Unpickles .metadata: the files must be verified or written by this run."""
    # Files are linked, not moved: the checkpoint stays complete if the process is killed now
    shutil.copytree(
        path, target, copy_function=os.link, ignore=shutil.ignore_patterns(MANIFEST, ".metadata", "common.pt")
    )
    common = torch.load(path / "common.pt", map_location="cpu", weights_only=True)
    torch.save(_rebuilt(common), target / "common.pt")
    metadata = pickle.loads((path / ".metadata").read_bytes())
    metadata.storage_meta = None
    metadata.storage_data = dict(sorted(metadata.storage_data.items(), key=lambda item: repr(item[0])))
    with (target / ".metadata").open("wb") as stream:
        pickler = MetadataPickler(stream)
        pickler.fast = True  # without a memo, since it is random which equal objects are identical
        pickler.dump(metadata)


def _rebuilt(value: Any) -> Any:
    """Rebuild a value from new objects. A pickle records which equal objects are identical, and that differs between a
    resumed run and an uninterrupted one."""
    if isinstance(value, dict):
        return {_rebuilt(key): _rebuilt(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_rebuilt(item) for item in value)
    if isinstance(value, str):
        return sys.intern(value)
    return value.clone() if isinstance(value, torch.Tensor) else value
