"""Results of partitions in storage, for pods, which share no disk.

    STORAGE/partitions/<key>.scan/, <key>.tokens/    as in partition_cache.py; complete with their manifests
    STORAGE/known/<key>.names/                       in another folder, since a night needs old ones too

So a partition is computed only once, even if another pod needs it, after a restart or for another corpus. A lifecycle
rule of the bucket may delete old ones at any time.
"""

from dataclasses import dataclass
from pathlib import Path

from baton.infra.storage import buckets as storage
from baton.infra.storage.durable import new_folder
from baton.tasks.core.job import Job
from baton.tasks.core.manifest import MANIFEST, ArtifactError, verify
from baton.tasks.core.stored import download, is_complete, manifest_at, send_sealed


@dataclass(frozen=True)
class StoredFolders:
    """A cache in storage."""

    address: str

    def has(self, name: str) -> bool:
        """Return whether a folder of this name is complete. Raises StorageError."""
        return is_complete(f"{self.address}/{name}")

    def load(self, target: Path) -> bool:
        """Download the folder of this name to `target`; False if no intact one is stored. Raises StorageError."""
        place = f"{self.address}/{target.name}"
        try:
            manifest = manifest_at(place)
        except ArtifactError:
            return False
        try:
            with new_folder(target) as partial:
                download(place, manifest, partial)
                verify(partial)
        except ArtifactError as error:
            print(f"{error} Recomputing it.", flush=True)
            storage.delete(place, [MANIFEST, *manifest.files])  # a file of the right size would not be replaced
            return False
        return True

    def store(self, folder: Path) -> None:
        """Upload a folder. Raises StorageError."""
        place = f"{self.address}/{folder.name}"
        send_sealed(folder, place, storage.sizes(place))


def stored(job: Job) -> StoredFolders | None:
    """The cache in storage for a job in a pod; None elsewhere."""
    return StoredFolders(f"{job.storage}/partitions") if job.storage else None
