"""Create MLflow's SQLite store: atomically, never over an existing file, never by a reader.

MLflow creates its tables by some fifty migrations, each in its own transaction: a process killed in between leaves a
file that no later MLflow can open. So the tables are created in a temporary file, which is then linked to its name.
"""

import fcntl
import os
import sqlite3
import threading
from contextlib import closing, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

from mlflow.store.db.utils import _get_latest_schema_revision
from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore
from sqlalchemy import Engine, event

from baton.infra.storage.durable import sync
from baton.infra.tracking.sqlite_file import check_file, left_behind, store_file, store_missing, store_older
from baton.infra.tracking.store import tracking_uri, was_used

PREFIX = "sqlite:///"
_migrating = threading.Lock()  # Alembic, MLflow's migration tool, has a global context


def make_tables(uri: str, recreate: bool = False) -> None:
    """Create the store of an `sqlite:///` address if it is missing and this machine never used it (or, with `recreate`,
    even if it did); 1-2 s. Raises StoreMissing, StoreDamaged."""
    path = store_file(uri)
    if path is None:
        return
    if not path.exists():
        with _migrating, path.with_name(f"{path.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # if two executions start at once, one creates it
            if not path.exists():
                if left_behind(path) or (was_used(uri) and not recreate):
                    raise store_missing(path)
                _make(path)
    check_file(path, was_used=True)


def require_store(uri: str) -> None:
    """Raise NoStore, StoreMissing, StoreDamaged or StoreOlder if there is no store that can be read without changing
    it: MLflow migrates an older store as it opens it, and the older MLflow cannot open it afterwards."""
    path = store_file(uri)
    if path is not None:
        check_file(path, was_used(uri))
        read_only = f"file:{quote(str(path))}?mode=ro"
        with suppress(sqlite3.Error), closing(sqlite3.connect(read_only, uri=True)) as store:
            found = [revision for (revision,) in store.execute("SELECT version_num FROM alembic_version")]
            if found and found[0] != _get_latest_schema_revision():  # MLflow 3 has no public function for it
                raise store_older(path, found[0])


def _make(path: Path) -> None:
    new = path.with_name(f"{path.name}.new")
    for left in path.parent.glob(f"{new.name}*"):
        left.unlink()  # left by a process that was killed at this point
    store = SqlAlchemyStore(f"{PREFIX}{new}", (path.parent / "mlartifacts").absolute().as_uri())
    store.engine.dispose()
    sync(new)
    try:
        os.link(new, path)  # unlike a rename, it fails if a store has reappeared meanwhile
    except FileExistsError:
        pass  # use that one
    new.unlink()
    sync(path.parent)


@event.listens_for(Engine, "do_connect")
def _open_only(dialect: Any, record: Any, words: list[Any], options: dict[str, Any]) -> None:
    """Keep SQLite from creating the store's file when it is missing."""
    path = store_file(tracking_uri())
    if dialect.name == "sqlite" and path and words and Path(str(words[0])) == path:
        words[0] = f"file:{quote(str(path))}?mode=rw"
        options["uri"] = True


@event.listens_for(Engine, "connect")
def _make_commits_durable(connection: Any, record: Any) -> None:
    """Sync the removal of a transaction's journal too. By SQLite's default, after a power cut the journal can reappear
    and undo a committed transaction that is noted as sent (sqlite.org/pragma.html#pragma_synchronous)."""
    if isinstance(connection, sqlite3.Connection):
        connection.execute("PRAGMA synchronous=EXTRA")
