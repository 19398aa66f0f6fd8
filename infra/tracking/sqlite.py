"""A new SQLite store for MLflow, made whole or not at all.

MLflow makes its tables by some fifty migrations, each a transaction of its own: a process killed in
between leaves a file that no later MLflow can open. So they are made beside it, and then moved.
"""

import fcntl
import threading
from pathlib import Path

from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

PREFIX = "sqlite:///"
_migrating = threading.Lock()  # Alembic, which MLflow migrates with, has one global context


def make_tables(uri: str) -> None:
    """Make the store of an `sqlite:///` address if its file is not there; 1-2 s. Else do nothing."""
    path = Path(uri.removeprefix(PREFIX))
    if not uri.startswith(PREFIX) or path.exists():
        return
    with _migrating, path.with_name(f"{path.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two executions at once: one makes it
        if path.exists():
            return
        new = path.with_name(f"{path.name}.new")
        for left in path.parent.glob(f"{new.name}*"):
            left.unlink()  # of one that was killed here
        store = SqlAlchemyStore(f"{PREFIX}{new}", (path.parent / "mlartifacts").absolute().as_uri())
        store.engine.dispose()
        new.replace(path)
