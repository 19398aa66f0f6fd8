"""MLflow's database, opened read-only.

MLflow's client takes seconds where the pages have milliseconds, so they query its tables directly. All tables and
columns that they use are named here; tests/lineage/test_database.py fails when a version of MLflow changes them. A
database user with SELECT alone is enough.
"""

from collections.abc import Collection, Iterator
from typing import Any
from urllib.parse import quote

from sqlalchemy import Engine, NullPool, bindparam, column, create_engine, event, table, text
from sqlalchemy.engine import Connection, make_url
from sqlalchemy.exc import SQLAlchemyError

from baton.infra.errors import UserError
from baton.infra.tracking.redact import redact_text
from baton.infra.tracking.sqlite_file import check_file, store_file
from baton.infra.tracking.store import TrackingUnreachable, tracking_uri, was_used

A_QUERY = 900  # values in one IN (…); SQLite's limit is 999

EXPERIMENTS = table("experiments", column("experiment_id"), column("name"))
RUNS = table(
    "runs", *map(column, ("run_uuid", "name", "status", "start_time", "end_time", "lifecycle_stage", "experiment_id"))
)
TAGS = table("tags", column("key"), column("value"), column("run_uuid"))
PARAMS = table("params", column("key"), column("value"), column("run_uuid"))
LATEST = table("latest_metrics", *map(column, ("key", "value", "timestamp", "step", "is_nan", "run_uuid")))
METRICS = table("metrics", *map(column, ("key", "value", "timestamp", "step", "is_nan", "run_uuid")))
VERSIONS = table("model_versions", *map(column, ("name", "version", "creation_time", "description", "current_stage")))
VERSION_TAGS = table("model_version_tags", *map(column, ("key", "value", "name", "version")))
ALIASES = table("registered_model_aliases", column("alias"), column("name"), column("version"))
TABLES = (EXPERIMENTS, RUNS, TAGS, PARAMS, LATEST, METRICS, VERSIONS, VERSION_TAGS, ALIASES)

# the end of the prefix's range of tag keys: "/" follows "."
INPUTS = "baton.input."
AFTER_INPUTS = "baton.input/"


class LineageUnavailable(UserError):
    """The database that has the lineage cannot be read."""


def open_database(uri: str | None = None) -> Engine:
    """The store's database (MLFLOW_TRACKING_URI, or the SQLite file in Baton's home), read-only. Raises
    LineageUnavailable."""
    uri = uri or tracking_uri()
    shown = redact_text(uri)
    if path := store_file(uri):
        try:
            check_file(path, was_used(uri))
        except TrackingUnreachable as error:
            raise LineageUnavailable(str(error)) from error
        # a pooled connection would keep reading the file that a restore has replaced
        engine = create_engine(f"sqlite:///file:{quote(str(path))}?mode=ro&uri=true", poolclass=NullPool)
        event.listen(engine, "connect", _read_any_text)
    elif uri.startswith("postgresql"):
        read_only = {"options": "-c default_transaction_read_only=on"}
        engine = create_engine(make_url(uri), connect_args=read_only, pool_pre_ping=True)
    else:
        raise LineageUnavailable(
            f"{shown}: lineage is read from MLflow's database, sqlite:///… or postgresql://…; give that address with "
            "--store, or open the pages on the server's machine"
        )
    try:
        with engine.connect() as connection:
            connection.execute(text("SELECT 1 FROM runs LIMIT 1"))
    except SQLAlchemyError as error:
        reason = redact_text(str(error)).partition("\n")[0]
        raise LineageUnavailable(f"{shown}: not a readable MLflow database ({reason})") from error
    return engine


def _read_any_text(connection: Any, _: Any) -> None:
    """SQLite stores text that is not UTF-8; one such row must not fail a whole page."""
    connection.text_factory = lambda text: text.decode(errors="replace")


def rows(connection: Connection, query: Any, **values: Collection[str]) -> Iterator[Any]:
    """The rows of a query with one expanding `IN` parameter, fetched in batches."""
    ((name, items),) = values.items()
    listed = list(items)
    for start in range(0, len(listed), A_QUERY):
        yield from connection.execute(query, {name: listed[start : start + A_QUERY]})


def among(name: str) -> Any:
    """The right side of `column.in_(…)` for `rows`."""
    return bindparam(name, expanding=True)
