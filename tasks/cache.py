"""Flyte's local cache, in Baton's home beside the artifacts that it points to. What is wrong with it is named.

Flyte would end in a traceback where its database is damaged, and at an entry that is not what it stored. Importing this
module wraps the two functions of flytekit 1.16 that read and write it; it can go when flytekit does either itself.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import flytekit.core.local_cache
from flytekit.core.local_cache import LocalTaskCache
from flytekit.models.literals import LiteralMap

from infra.errors import Stopped, disk_errors_named, disk_refused, move_aside
from infra.home import baton_home
from infra.progress import say

# Flyte keeps one cache for the whole user
with disk_errors_named():
    FOLDER = baton_home() / "flyte-cache"
flytekit.core.local_cache.CACHE_LOCATION = str(FOLDER)

_get, _set = LocalTaskCache.get, LocalTaskCache.set
_OF_THE_DISK = ("disk is full", "disk I/O error", "readonly database", "unable to open")  # SQLite's words


class CacheBusy(Stopped):
    """Another process holds the lock of Flyte's cache for longer than SQLite waits."""


class CacheDamaged(Stopped):
    """Flyte's cache cannot be read."""


def get(task: str, *key: Any) -> LiteralMap | None:
    """What a stage made for these inputs before: one artifact. None too where the entry is not that: it is made again
    then, or found among the finished jobs."""
    with _errors_named():
        try:
            found: LiteralMap | None = _get(task, *key)
        except (sqlite3.Error, OSError):
            raise
        except Exception as error:  # pickle and protobuf raise whatever comes of garbage
            say(f"{task}: its entry in {FOLDER} cannot be read ({type(error).__name__}), so it counts as not cached")
            return None
    return found if found is None or len(found.literals) == 1 else None


def put(*entry: Any) -> None:
    with _errors_named():
        _set(*entry)


@contextmanager
def _errors_named() -> Iterator[None]:
    """Raises DiskRefused, CacheDamaged."""
    try:
        with disk_errors_named():
            yield
    except sqlite3.Error as error:
        if any(words in str(error) for words in _OF_THE_DISK):
            raise disk_refused(str(error), str(FOLDER), full="full" in str(error)) from error
        if "locked" in str(error):
            raise CacheBusy(
                f"{FOLDER / 'cache.db'}: another run has Flyte's cache locked; run again when it has ended"
            ) from error
        raise CacheDamaged(
            f"{FOLDER / 'cache.db'}: Flyte's cache cannot be read ({error}). Move it aside and run the same command "
            f"again: what was made is found among the finished jobs.\n  {move_aside(FOLDER)}"
        ) from error


LocalTaskCache.get, LocalTaskCache.set = staticmethod(get), staticmethod(put)
