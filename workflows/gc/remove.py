"""Remove chosen items from a home. What is in use by a process at this moment stays."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from baton.infra.process.file_lock import try_lock
from baton.infra.storage.durable import remove
from baton.tasks.core.manifest import ArtifactError, read_manifest
from baton.tasks.core.removed import remove_files
from baton.workflows.gc.found import DOWNLOADS, LEFTOVERS, Item


def remove_items(items: Sequence[Item]) -> Iterator[tuple[Item, str]]:
    """Remove items, and yield each with the reason why it stayed, or "". What leaves no mark comes first, since a full
    disk may have no room for marks."""
    for item in sorted(items, key=lambda item: item.manifest is not None):
        try:
            with _unused(item) as is_unused:
                yield item, _removed(item) if is_unused else "a process is working on it"
        except OSError as error:
            yield item, f"cannot be removed: {(error.strerror or str(error)).lower()}"


def _removed(item: Item) -> str:
    if item.manifest is None:
        if item.place.is_dir():
            remove(item.place)
        else:
            item.place.unlink(missing_ok=True)
        return "some of its files cannot be removed" if item.place.exists() else ""
    try:
        if read_manifest(item.place).digest != item.digest:
            return "another run has just made it"
    except ArtifactError:
        return "another process has removed it"
    remove_files(item.place, item.manifest)
    return ""


@contextmanager
def _unused(item: Item) -> Iterator[bool]:
    """Yield whether no process works on an item, and keep others from it: the log of a job is locked by its engine, and
    the folder of a cache by a file beside it."""
    path: Path | None = item.job / "log.txt" if item.job else None
    if item.kind in (DOWNLOADS, LEFTOVERS) and item.job is None:
        path = item.place.with_name(f"{item.place.name.partition('.')[0]}.lock")
    if path is None or not path.exists():
        yield True
        return
    with path.open("ab") as file:
        yield try_lock(file)
