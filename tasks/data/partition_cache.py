"""Cache the results of partitions beyond their corpus, so that only changed partitions are worked on again.

    HOME/partitions/<key>.scan/      the scan of one partition (scan.py)
    HOME/partitions/<key>.tokens/    the tokens of a part of a corpus' file (encode.py)
    HOME/partitions/<key>.names/     the names of some successive corpora (known_blocks.py)

Files are shared with the corpus and the shards where possible (hard links). The key is a digest of all that
determines the content, versions included. Only folders of a source or corpus in several parts are cached; those that
were not used for 30 days are removed. When less than a tenth of the disk is free, so are the least recently used ones,
except those that mostly share their files with a corpus: removing them would free little. The folder may be deleted at
any time.
"""

import os
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from baton.infra.paths import baton_home
from baton.infra.storage.durable import NO_LINK, make_folder, new_folder, remove
from baton.tasks.core.manifest import MANIFEST, ArtifactError, verify, write_manifest

MAX_UNUSED_S = 30 * 24 * 3600.0  # a folder that is unused for longer is removed
MIN_FREE = 0.1  # fraction of the disk


class FolderCache(Protocol):
    """A cache of complete folders that outlives their job."""

    def load(self, target: Path) -> bool:
        """Copy the cached folder of this name to `target`; False if the cache has no intact one."""

    def store(self, folder: Path) -> None:
        """Add a folder to the cache."""


def make_once(folder: Path, kind: str, cache: FolderCache | None, fill: Callable[[Path], dict[str, Any]]) -> bool:
    """Make a folder with a manifest, completely or not at all, unless it exists or is cached: `fill` writes its files
    and returns the manifest's facts. Returns False if `fill` was not called. Raises the errors of `fill`, StorageError.
    """
    if is_intact(folder) or (cache and cache.load(folder)):
        return False
    remove(folder)
    with new_folder(folder) as partial:
        write_manifest(partial, kind, fill(partial))
    if cache:
        cache.store(folder)
    return True


@dataclass(frozen=True)
class DiskCache:
    """The cache on this machine's disk."""

    folder: Path

    def load(self, target: Path) -> bool:
        source = self.folder / target.name
        if not source.exists() or not _copy(source, target):
            return False
        if is_intact(target):
            with suppress(FileNotFoundError):  # just removed by another process
                os.utime(source / MANIFEST)
            return True
        remove(target)
        remove(source)
        return False

    def store(self, folder: Path) -> None:
        make_folder(self.folder)
        if not (self.folder / folder.name).exists():
            _copy(folder, self.folder / folder.name)

    def make_room(self) -> None:
        """Remove folders that were not used for long or were left by killed processes, and more if the disk is nearly
        full."""
        used = sorted((moment, path) for path in self.folder.glob("*") if (moment := _last_use(path)) is not None)
        for moment, path in used:
            if time.time() - moment <= MAX_UNUSED_S:
                disk = shutil.disk_usage(self.folder)
                if disk.free >= MIN_FREE * disk.total:
                    return
                if _is_shared(path):
                    continue
            remove(path)


def _is_shared(folder: Path) -> bool:
    """Return whether more than half of a folder's bytes are in files with other links, and would stay on the disk."""
    with suppress(FileNotFoundError):  # just removed by another process
        files = [path.stat() for path in folder.rglob("*") if path.is_file()]
        return sum(file.st_size for file in files if file.st_nlink > 1) > sum(file.st_size for file in files) / 2
    return False


def _last_use(scan: Path) -> float | None:
    """The time at which a folder was last used; None if another process has just removed it."""
    manifest = scan / MANIFEST
    try:
        return (manifest if manifest.exists() else scan).stat().st_mtime
    except FileNotFoundError:
        return None


def disk_cache() -> DiskCache:
    """Return the cache in the home folder."""
    return DiskCache(baton_home() / "partitions")


def is_intact(folder: Path) -> bool:
    """Return whether all files of a folder exist, unchanged."""
    try:
        verify(folder)
    except (ArtifactError, FileNotFoundError):
        return False
    return True


def _copy(source: Path, target: Path) -> bool:
    """Copy a folder, by links if possible; False if another process removed it meanwhile."""
    try:
        with new_folder(target) as partial:
            shutil.copytree(source, partial, copy_function=_link, dirs_exist_ok=True)
    except (FileNotFoundError, shutil.Error):
        return False
    return target.exists()


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in NO_LINK:
            raise
        shutil.copy2(source, target)
