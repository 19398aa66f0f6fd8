"""List what takes space in a home: artifacts, checkpoints of jobs, downloads, and what killed processes left."""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from baton.infra.paths import REMOVED, baton_home
from baton.infra.process.launch import is_finished
from baton.tasks.core.manifest import MANIFEST, ArtifactError, Manifest, read_manifest
from baton.workflows.gc.needs import Needs

CHECKPOINTS, UNFINISHED, DOWNLOADS, LEFTOVERS = "checkpoints", "unfinished", "downloads", "leftovers"
CACHES = ("artifacts", "parts", "brought", "partitions")  # folders of what can be downloaded or computed again
TEMPORARY = ("*.partial", "sending", "downloading", "inputs")  # of a job that works


@dataclass(frozen=True)
class Item:
    """Files that are removed together.

    The files of an artifact are removed but for its manifest and its record; of any other item, the `place`."""

    kind: str  # of the artifact, or one of those above
    place: Path
    used: float  # time of the last use, seconds since the epoch
    job: Path | None = None  # the folder of the job, whose log is locked while its engine works
    manifest: Manifest | None = None  # of an artifact

    @property
    def digest(self) -> str:
        return self.manifest.digest if self.manifest else ""

    def files(self) -> Iterator[Path]:
        """Yield the files that are removed."""
        if self.manifest:
            yield from (path for name in self.manifest.files if (path := self.place / name).is_file())
        elif self.place.is_file():
            yield self.place
        else:
            for folder, _, names in os.walk(self.place):
                yield from (Path(folder, name) for name in names)


def found(needs: Needs) -> list[Item]:
    """List everything in the home that could be removed, needed or not."""
    items = [item for job in _folders(baton_home() / "jobs") for item in _of_job(job, needs)]
    for name in CACHES:
        for place in _folders(baton_home() / name):  # not in BATON_CACHE, which other homes may share
            kind = LEFTOVERS if place.name.endswith(".partial") else DOWNLOADS
            items.append(Item(kind, place, max(_modified(place), _modified(place / MANIFEST))))
    return items


def freed(items: Iterable[Item]) -> int:
    """Return the bytes on the disk that the removal of some items frees. A file with several names, such as the weights
    of a model and of its publication, is freed with the last of them."""
    names: dict[tuple[int, int], int] = {}
    sizes: dict[tuple[int, int], tuple[int, int]] = {}
    seen: set[Path] = set()
    for item in items:
        for path in item.files():
            if path in seen:
                continue
            seen.add(path)
            try:
                stat = path.lstat()
            except FileNotFoundError:  # removed meanwhile
                continue
            key = stat.st_dev, stat.st_ino
            names[key] = names.get(key, 0) + 1
            sizes[key] = stat.st_nlink, stat.st_blocks * 512
    return sum(size for key, (links, size) in sizes.items() if names[key] >= links)


def _of_job(job: Path, needs: Needs) -> Iterator[Item]:
    output = job / "output"
    used = needs.job_used.get(job.name, _modified(job))
    try:
        manifest = read_manifest(output)
    except ArtifactError:
        manifest = None
    if manifest:
        last = needs.used.get(manifest.digest, max(used, _modified(output / MANIFEST)))
        yield Item(manifest.kind, output, last, job, manifest)
    if is_finished(job):
        yield from (Item(LEFTOVERS, place, used, job) for name in TEMPORARY for place in job.glob(name))
        yield from (Item(CHECKPOINTS, place, used, job) for place in job.glob("work"))
    else:
        folders = [place for place in _folders(job) if manifest is None or place != output]
        yield from (Item(UNFINISHED, place, max(used, _modified(place)), job) for place in folders)


def is_removed(item: Item) -> bool:
    """Return whether the files of an artifact were removed before."""
    return item.manifest is not None and (item.place / REMOVED).exists() and not any(item.files())


def _folders(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("*") if path.is_dir() and not path.is_symlink())


def _modified(path: Path) -> float:
    try:
        return path.lstat().st_mtime
    except FileNotFoundError:
        return 0.0
