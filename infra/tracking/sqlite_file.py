"""Check the file of an SQLite store: whether it exists and is intact, and what to do if not.

Does not import MLflow. A missing file may come back (a restore, a remount), and it alone has the model registry's
versions. So only a new run creates it, on a machine that never had one (infra/tracking/sqlite.py); in every other case
its absence is an error.
"""

import shlex
import sqlite3
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import quote, urlsplit

from baton.infra.commands import command
from baton.infra.errors import UserError, move_aside

JOURNALS = ("-journal", "-wal", "-shm")  # suffixes of files that belong to the database
LOCKED_S = 5.0
SYNC_ALL = "baton tracking sync --all"

# parts of SQLite's messages about a permanently damaged file
_DAMAGED = ("malformed", "not a database", "no such table", "no such column")


class TrackingUnreachable(UserError):
    """The configured tracking store is unreachable."""


class NoStore(TrackingUnreachable):
    """The file does not exist, and never did."""


class StoreMissing(NoStore):
    """The file is missing, though records were sent to it."""


class StoreDamaged(TrackingUnreachable):
    """This MLflow can't read the file."""


class StoreOlder(TrackingUnreachable):
    """An older MLflow has written the file."""


def store_file(uri: str) -> Path | None:
    """The file of an SQLite store, or None for another kind of store."""
    scheme = urlsplit(uri).scheme.partition("+")[0]
    return Path(uri.partition(":///")[2].partition("?")[0]).absolute() if scheme == "sqlite" else None


def check_file(path: Path, was_used: bool) -> None:
    """Raise NoStore, StoreMissing (if it `was_used`) or StoreDamaged. Takes under a millisecond at any size."""
    if not path.exists():
        raise (
            store_missing(path)
            if was_used
            else NoStore(f"{path}: there is no tracking store yet; the first run creates it (make demo)")
        )
    try:
        with closing(sqlite3.connect(f"file:{quote(str(path))}?mode=rw", uri=True, timeout=LOCKED_S)) as store:
            store.execute("SELECT 1 FROM experiments, registered_models LIMIT 1").fetchall()
            revisions = [revision for (revision,) in store.execute("SELECT version_num FROM alembic_version")]
    except sqlite3.Error as error:
        if damaged := damage(path, str(error)):
            raise damaged from error
        if not path.exists():
            raise store_missing(path) from error
        return  # locked: the error is reported when MLflow opens it
    unknown = [revision for revision in revisions if not _is_known(revision)]
    if unknown or not revisions:
        reason = f"a newer MLflow has written it, schema {unknown[0]}" if unknown else "its creation was interrupted"
        raise _damaged(path, reason)


def damage(path: Path, reason: str) -> StoreDamaged | None:
    """The error for a message of SQLite, if the message means that the file is damaged."""
    return _damaged(path, reason) if any(words in reason for words in _DAMAGED) else None


def store_missing(path: Path) -> StoreMissing:
    return StoreMissing(
        f"{path}: the tracking store is missing; it existed before, with the model registry in it. Mount its disk or "
        "restore the file. To create a new one instead, with the runs whose records are still here:\n"
        f"{_move_aside(path)}  {command(SYNC_ALL)}"
    )


def store_older(path: Path, schema: str) -> StoreOlder:
    store, copy = (shlex.quote(text) for text in (f"sqlite:///{path}", f"{path}.copy"))
    return StoreOlder(
        f"{path}: an older MLflow has written the tracking store (schema {schema}), and cannot open it "
        "once this one has migrated it. While nothing uses it, copy it and migrate it:\n"
        f"  cp {shlex.quote(str(path))} {copy}\n"
        f"  {command(f'mlflow db upgrade {store}')}"
    )


def _damaged(path: Path, reason: str) -> StoreDamaged:
    newer = "use that MLflow, or " if "newer" in reason else ""
    return StoreDamaged(
        f"{path}: the tracking store cannot be read ({reason}). If there is a backup, restore it: only this file has "
        f"the versions of the model registry; {newer}move it aside and upload the runs whose records are still here to "
        f"a new one:\n{_move_aside(path)}  {command(SYNC_ALL)}"
    )


def left_behind(path: Path) -> list[Path]:
    """Journal files of a database that exist beside it. SQLite would apply them to a new file."""
    return [beside for suffix in JOURNALS if (beside := Path(f"{path}{suffix}")).exists()]


def _move_aside(path: Path) -> str:
    """The command that moves the old files aside, as a line of a message."""
    files = [file for file in (path, *left_behind(path)) if file.exists()]
    return f"  {move_aside(*files)}\n" if files else ""


def _is_known(revision: str) -> bool:
    """Return whether the installed MLflow has the migration to a schema: in MLflow 2 and 3, a file whose name begins
    with the revision."""
    mlflow = find_spec("mlflow")
    assert mlflow and mlflow.submodule_search_locations
    migrations = Path(mlflow.submodule_search_locations[0], "store", "db_migrations", "versions")
    return any(migrations.glob(f"{revision}_*.py"))
