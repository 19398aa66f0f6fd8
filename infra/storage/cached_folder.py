"""Folders of a cache, each fetched or made once, however many processes ask for it at the same time."""

import fcntl
from collections.abc import Callable
from pathlib import Path

from baton.infra.progress import say
from baton.infra.storage.durable import new_folder, remove


def cached_folder(folder: Path, fault: Callable[[Path], str], fill: Callable[[Path], object]) -> Path:
    """Return a folder of a cache. Unless it exists without a `fault`, `fill` writes it, completely or not at all, while
    other processes wait. `fault` returns what is wrong with a folder, in a sentence, or ""."""
    with folder.with_name(f"{folder.name}.lock").open("a") as lock:
        found = ""
        for mode in (fcntl.LOCK_SH, fcntl.LOCK_EX):  # several processes may check it at once; one writes it
            fcntl.flock(lock, mode)
            if folder.exists() and not (found := fault(folder)):
                return folder
        if found:
            say(f"{found} Fetching it again.")
            remove(folder)
        for left in folder.parent.glob(f"{folder.name}.*.partial"):  # left by killed processes: this one has the lock
            remove(left)
        with new_folder(folder) as partial:
            fill(partial)
    return folder
