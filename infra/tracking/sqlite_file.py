"""The file of an SQLite store: whether it is there, whether it is sound, and what to do if not.

Does not import MLflow. A file that is away may come back (a restore, a remount), and the model registry's
versions are in it alone: so it is made by whoever begins a run, where this machine never had one
(infra/tracking/sqlite.py), and in every other case its absence is an error.
"""

import sqlite3
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import quote, urlsplit

from infra.errors import Stopped, move_aside

JOURNALS = ("-journal", "-wal", "-shm")  # of the files that are one database with it
LOCKED_S = 5.0
SYNC_ALL = "python -m infra.tracking sync --all"

# SQLite's words for a file that will not get well by itself
_DAMAGED = ("malformed", "not a database", "no such table", "no such column")


class TrackingUnreachable(Stopped):
    """The tracking store that was asked for cannot be had."""


class NoStore(TrackingUnreachable):
    """There is no such file, and there never was."""


class StoreAway(NoStore):
    """The file is gone, though records were sent to it."""


class StoreDamaged(TrackingUnreachable):
    """The file is not a store that this MLflow can read."""


def store_file(uri: str) -> Path | None:
    """The file of an SQLite store, or None: the store is of another kind."""
    scheme = urlsplit(uri).scheme.partition("+")[0]
    return Path(uri.partition(":///")[2].partition("?")[0]).absolute() if scheme == "sqlite" else None


def check_file(path: Path, was_used: bool) -> None:
    """Raise NoStore, StoreAway (if it `was_used`) or StoreDamaged. Under a millisecond, whatever its size."""
    if not path.exists():
        raise (
            away(path)
            if was_used
            else NoStore(f"{path}: there is no tracking store yet; the first run makes it (make demo)")
        )
    try:
        with closing(sqlite3.connect(f"file:{quote(str(path))}?mode=rw", uri=True, timeout=LOCKED_S)) as store:
            store.execute("SELECT 1 FROM experiments, registered_models LIMIT 1").fetchall()
            revisions = [revision for (revision,) in store.execute("SELECT version_num FROM alembic_version")]
    except sqlite3.Error as error:
        if found := damage(path, str(error)):
            raise found from error
        if not path.exists():
            raise away(path) from error
        return  # locked: its user will say what is wrong with it
    unknown = [revision for revision in revisions if not _is_known(revision)]
    if unknown or not revisions:
        reason = f"a newer MLflow has written it, schema {unknown[0]}" if unknown else "it was not made whole"
        raise _damaged(path, reason)


def damage(path: Path, reason: str) -> StoreDamaged | None:
    """What SQLite says of a file, with the way out, if it says that the file is damaged."""
    return _damaged(path, reason) if any(words in reason for words in _DAMAGED) else None


def away(path: Path) -> StoreAway:
    return StoreAway(
        f"{path}: the tracking store is gone; it was there before, with the model registry in it. Mount its disk or "
        "restore the file. To begin a new one instead, which gets the runs whose records are still here:\n"
        f"{_move_aside(path)}  {SYNC_ALL}"
    )


def _damaged(path: Path, reason: str) -> StoreDamaged:
    newer = "use that MLflow, or " if "newer" in reason else ""
    return StoreDamaged(
        f"{path}: not a tracking store that can be read ({reason}). If there is a backup, restore it: the versions of "
        f"the model registry are in this file alone; {newer}move it aside and send the runs whose records are still "
        f"here to a new one:\n{_move_aside(path)}  {SYNC_ALL}"
    )


def left_behind(path: Path) -> list[Path]:
    """The files of a database that are there beside its own. SQLite would apply a journal to a new file."""
    return [beside for suffix in JOURNALS if (beside := Path(f"{path}{suffix}")).exists()]


def _move_aside(path: Path) -> str:
    """The line of a message that makes room for a new file."""
    files = [each for each in (path, *left_behind(path)) if each.exists()]
    return f"  {move_aside(*files)}\n" if files else ""


def _is_known(revision: str) -> bool:
    """Whether the installed MLflow has the migration to a schema. Of MLflow 2 and 3: one file for each, which begins
    with its name."""
    mlflow = find_spec("mlflow")
    assert mlflow and mlflow.submodule_search_locations
    migrations = Path(mlflow.submodule_search_locations[0], "store", "db_migrations", "versions")
    return any(migrations.glob(f"{revision}_*.py"))
