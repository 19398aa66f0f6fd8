"""Scanned partitions in storage, for pods, which share no disk.

    STORAGE/partitions/<key>.scan/    the scan of one partition (scan.py); complete with its manifest

The key is that of the scans that are kept on a disk (kept_scans.py). So a partition that one pod has read is not read
again, by another pod, after a restart or for another corpus. A lifecycle rule of the bucket may delete old ones at any
time.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from infra.durable import rename
from infra.placement import storage
from tasks.manifest import ArtifactError, remove, verify
from tasks.stored import download, manifest_at, mark_damaged, send_sealed


@dataclass(frozen=True)
class StoredScans:
    """The folder in storage."""

    address: str

    def take(self, target: Path) -> bool:
        """Download the scan of this name to `target`; False if there is none that is intact. Raises StorageError."""
        place = f"{self.address}/{target.name}"
        try:
            manifest = manifest_at(place)
        except ArtifactError:
            return False
        partial = target.with_name(f"{target.name}.{os.getpid()}.partial")
        remove(partial)
        try:
            download(place, manifest, partial)
            verify(partial)
        except ArtifactError as error:
            print(f"{error} Reading the partition again.", flush=True)
            remove(partial)
            mark_damaged(place)
            return False
        rename(partial, target)
        return True

    def keep(self, scan: Path) -> None:
        """Send a scan. Raises StorageError."""
        place = f"{self.address}/{scan.name}"
        send_sealed(scan, place, storage.sizes(place))
