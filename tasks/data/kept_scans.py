"""Partitions as they were read for earlier corpora, so that only changed ones are read again.

HOME/partitions/<key>.scan/ has the scan of one partition (scan.py); its files are shared with the corpus where nothing
was dropped from them later (hard links). The key is a digest of all that determines it: the partition's files with
their sizes and modification times, the fields of the source, the steps of the curation, the held-out share, and
versions. Only partitions of sources that were cut in several are kept; one that no corpus has used for 30 days is
removed, and so are those that were not used for longest when less than a tenth of the disk is free. The folder may be
deleted at any time.
"""

import errno
import os
import shutil
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from infra.durable import make_folder
from tasks.data.rounds import put
from tasks.manifest import MANIFEST, ArtifactError, remove, verify

KEPT_S = 30 * 24 * 3600.0  # after its last use
FREE = 0.1  # of the disk


@dataclass(frozen=True)
class KeptScans:
    """The folder with the scans of earlier corpora."""

    folder: Path

    def take(self, target: Path) -> bool:
        """Put the kept scan of this name at `target`; False if there is none that is intact."""
        source = self.folder / target.name
        if not source.exists() or not _copied(source, target):
            return False
        if is_intact(target):
            with suppress(FileNotFoundError):  # just removed by another process
                os.utime(source / MANIFEST)
            return True
        remove(target)
        remove(source)
        return False

    def keep(self, scan: Path) -> None:
        """Keep a scan beyond its job."""
        make_folder(self.folder)
        if not (self.folder / scan.name).exists():
            _copied(scan, self.folder / scan.name)

    def make_room(self) -> None:
        """Remove what was not used for long, what a killed process left, and more if the disk is nearly full."""
        used = sorted((moment, path) for path in self.folder.glob("*") if (moment := _last_use(path)) is not None)
        for moment, path in used:
            disk = shutil.disk_usage(self.folder)
            if time.time() - moment <= KEPT_S and disk.free >= FREE * disk.total:
                return
            remove(path)


def _last_use(scan: Path) -> float | None:
    """When a scan was used; None if another process has just removed it."""
    manifest = scan / MANIFEST
    try:
        return (manifest if manifest.exists() else scan).stat().st_mtime
    except FileNotFoundError:
        return None


def is_intact(scan: Path) -> bool:
    """Whether all files of a scan are there, unchanged."""
    try:
        verify(scan)
    except (ArtifactError, FileNotFoundError):
        return False
    return True


def _copied(source: Path, target: Path) -> bool:
    """Copy a folder, by links if possible; False if another process removed it meanwhile or was first."""
    partial = target.with_name(f"{target.name}.{os.getpid()}.partial")
    remove(partial)
    try:
        shutil.copytree(source, partial, copy_function=_linked)
    except (FileNotFoundError, shutil.Error):
        remove(partial)
        return False
    return put(partial, target) or target.exists()


def _linked(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EPERM, errno.EMLINK):
            raise
        shutil.copy2(source, target)
