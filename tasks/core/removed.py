"""Artifacts whose files `baton gc` has removed.

Such an artifact keeps its manifest, and its record of the run that made it. `record/removed.json` distinguishes it from
one that has lost files: it is recomputed only if a stage that runs needs its files. The mark is written before the
first file is removed, so that a killed removal leaves no artifact that looks damaged.
"""

import errno
import json
import time
from pathlib import Path, PurePosixPath

from baton.infra.paths import REMOVED
from baton.infra.storage import buckets as storage
from baton.infra.storage.buckets import is_bucket
from baton.infra.storage.durable import make_folder, write_json
from baton.tasks.core.manifest import MANIFEST, ArtifactError, Manifest, read_manifest
from baton.tasks.core.stored import manifest_at


def was_removed(place: str) -> bool:
    """Return whether `baton gc` has removed files from a folder or an address, and they were not restored since.
    Raises StorageError."""
    try:
        if not is_bucket(place):
            folder = Path(place)
            files = read_manifest(folder).files
            return (folder / REMOVED).exists() and not all((folder / name).exists() for name in files)
        storage.read(f"{place}/{REMOVED}")
        return not manifest_at(place).files.keys() <= storage.sizes(place).keys()
    except (ArtifactError, FileNotFoundError):
        return False


def remove_files(folder: Path, manifest: Manifest) -> None:
    """Remove the files of a local artifact; its manifest and its record stay. A full disk has no room for the mark
    before a file is removed."""
    root = folder.resolve()
    inside = [path for name in _names(manifest) if (path := folder / name).parent.resolve().is_relative_to(root)]
    files = sorted(inside, key=_size, reverse=True)
    try:
        _mark(folder)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT) or not files:
            raise
        files.pop(0).unlink(missing_ok=True)
        _mark(folder)
    for path in files:
        path.unlink(missing_ok=True)
    for inner in sorted(
        {parent for path in files for parent in path.parents if folder in parent.parents}, reverse=True
    ):
        try:
            inner.rmdir()
        except OSError:  # it has other files, or is gone
            continue


def remove_stored(address: str, manifest: Manifest) -> None:
    """Remove the files of an artifact in storage; its manifest and its record stay. Raises StorageError."""
    storage.write(f"{address}/{REMOVED}", json.dumps({"time": time.time()}).encode())
    storage.delete(address, _names(manifest))


def _names(manifest: Manifest) -> list[str]:
    """Return the names of the files, without those that a changed manifest might have: outside of the artifact."""
    paths = {name: PurePosixPath(name) for name in manifest.files if name != MANIFEST}
    return [name for name, path in paths.items() if path.parts and not path.is_absolute() and ".." not in path.parts]


def _mark(folder: Path) -> None:
    make_folder((folder / REMOVED).parent)
    write_json(folder / REMOVED, {"time": time.time()})


def _size(path: Path) -> int:
    return path.lstat().st_size if path.is_file() else 0
