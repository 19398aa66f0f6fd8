"""Flyte's local cache in Baton's home, beside the artifacts that it points to, with named errors.

Flyte itself ends in a traceback when its database is damaged or an entry is unreadable. infra/flyte/install.py replaces
its functions with `get` and `put`.
"""

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from flytekit.core.local_cache import LocalTaskCache
from flytekit.models.literals import LiteralMap

from baton.infra.errors import UserError, move_aside
from baton.infra.paths import baton_home
from baton.infra.progress import say
from baton.infra.storage.disk_errors import disk_errors_named, disk_refused

T = TypeVar("T")

FOLDER = baton_home() / "flyte-cache"
OVERWRITE = "FLYTE_LOCAL_CACHE_OVERWRITE"  # Flyte reads this option only from the environment
_get, _set = LocalTaskCache.get, LocalTaskCache.set  # flytekit's functions
_DISK_ERRORS = ("disk is full", "disk I/O error", "readonly database", "unable to open")  # in SQLite's messages


class CacheBusy(UserError):
    """Raised if another process holds the lock of Flyte's cache longer than SQLite waits."""


class CacheDamaged(UserError):
    """Raised if Flyte's cache cannot be read."""


def get(task: str, *key: Any) -> LiteralMap | None:
    """Return the cached output of a task, one artifact. None if there is no entry, or if it is unreadable, so that the
    stage runs again or reuses its finished job."""
    with _errors_named():
        try:
            outputs: LiteralMap | None = _get(_name(task), *key)
        except (sqlite3.Error, OSError):
            raise
        except Exception as error:  # pickle and protobuf may raise any exception for damaged data
            say(f"{task}: its entry in {FOLDER} cannot be read ({type(error).__name__}), so it counts as not cached")
            return None
    return outputs if outputs is None or len(outputs.literals) == 1 else None


def put(task: str, *entry: Any) -> None:
    with _errors_named():
        _set(_name(task), *entry)


def _name(task: str) -> str:
    """Return a task's name in the cache. Entries of earlier versions have the name without the namespace."""
    return task.removeprefix("baton.")


def recomputed(compute: Callable[[], T]) -> T:
    """Execute a task even if its output is cached, and overwrite the cached output."""
    before = os.environ.get(OVERWRITE)  # set by --overwrite-cache
    os.environ[OVERWRITE] = "true"
    try:
        return compute()
    finally:
        if before is None:
            del os.environ[OVERWRITE]
        else:
            os.environ[OVERWRITE] = before


@contextmanager
def _errors_named() -> Iterator[None]:
    """Turn errors of SQLite into named ones. Raises CacheBusy, DiskRefused, CacheDamaged."""
    try:
        with disk_errors_named():
            yield
    except sqlite3.Error as error:
        if any(message in str(error) for message in _DISK_ERRORS):
            raise disk_refused(str(error), str(FOLDER), full="full" in str(error)) from error
        if "locked" in str(error):
            raise CacheBusy(
                f"{FOLDER / 'cache.db'}: another run has locked Flyte's cache; run again when it has ended"
            ) from error
        raise CacheDamaged(
            f"{FOLDER / 'cache.db'}: Flyte's cache cannot be read ({error}). Move it aside and run the same command "
            f"again: finished jobs are reused.\n  {move_aside(FOLDER)}"
        ) from error
