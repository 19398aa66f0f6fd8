"""Where MLflow's store is, whether it answers, and how to look at it. Does not import MLflow."""

import logging
import os
import urllib.error
import urllib.request
from urllib.parse import urlsplit

from blake3 import blake3

from infra.home import baton_home, quiet
from infra.tracking.redact import redact_text
from infra.tracking.spool import has_pushed_to
from infra.tracking.sqlite_file import NoStore, StoreAway, StoreDamaged, TrackingUnreachable, check_file, store_file

__all__ = ["NoStore", "StoreAway", "StoreDamaged", "TrackingUnreachable"]

EXPERIMENT = "baton"  # unless MLFLOW_EXPERIMENT_NAME says otherwise
ANSWER_S = 5.0  # a server that is there answers its health check within this
SCHEMES = ("http", "https", "sqlite", "postgresql", "mysql", "mssql", "file", "databricks")

# MLflow's own defaults retry one request for several minutes
_PATIENCE = {
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",  # two requests for each line of it
    "GIT_PYTHON_REFRESH": "quiet",
}


class PushFailed(Exception):
    """MLflow did not take a record now; the record stays in the spool."""


def tracking_uri() -> str:
    """MLFLOW_TRACKING_URI, or an SQLite file in Baton's home."""
    return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{baton_home() / 'mlflow.db'}"


def artifact_location() -> str | None:
    """Where the experiment keeps its files: in Baton's home, or where the given store decides."""
    return None if os.environ.get("MLFLOW_TRACKING_URI") else (baton_home() / "mlartifacts").as_uri()


def passed_on(uri: str | None = None) -> dict[str, str]:
    """The store, for a job on another machine: a server, which that one reaches too. It may hold a password."""
    uri = os.environ.get("MLFLOW_TRACKING_URI", "") if uri is None else uri
    return {"MLFLOW_TRACKING_URI": uri} if urlsplit(uri).scheme in ("http", "https", "databricks") else {}


def experiment_name() -> str:
    return os.environ.get("MLFLOW_EXPERIMENT_NAME") or EXPERIMENT


def shown_uri() -> str:
    """The tracking URI as it may be shown: without its secrets."""
    return redact_text(tracking_uri())


def store_digest(uri: str) -> str:
    """Which store and which experiment in it; digests, since addresses can carry secrets."""
    return f"{_digest(uri)}-{blake3(experiment_name().encode()).hexdigest()[:16]}"


def was_used(uri: str) -> bool:
    """Whether records of this machine were sent to a store, in any experiment."""
    return has_pushed_to(f"{_digest(uri)}-")


def _digest(uri: str) -> str:
    return blake3(str(store_file(uri) or uri).encode()).hexdigest()[:16]


def tracking_hint() -> str:
    """What a person types or opens to see the runs."""
    if urlsplit(tracking_uri()).scheme in ("http", "https"):
        return f"{shown_uri()} (experiment {experiment_name()})"
    return f"python -m infra.lineage --store {shown_uri()}"


def prepare_client() -> None:
    """Set this process up for MLflow before it is imported: no telemetry, little noise, short waits."""
    quiet()
    for name, value in _PATIENCE.items():
        os.environ.setdefault(name, value)
    if store_file(tracking_uri()):
        # a connection that is kept open would go on with the file that was there before a restore
        os.environ.setdefault("MLFLOW_SQLALCHEMYSTORE_POOLCLASS", "NullPool")
    # it logs the traceback of each error of the database that it also raises
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)


def check_reachable() -> None:
    """Ask whether the store is there (an SQLite file may also be yet to be made), before anything is spent. Any
    HTTP answer counts: a proxy may guard the health check. Raises TrackingUnreachable."""
    uri = tracking_uri()
    parts = urlsplit(uri)
    scheme = parts.scheme.partition("+")[0]
    if scheme in ("http", "https"):
        _ask(uri.rstrip("/") + "/health")
    elif path := store_file(uri):
        used = was_used(uri)
        if path.exists() or used:
            check_file(path, used)
        if not os.access(path.parent, os.W_OK):
            raise _unreachable(f"{path.parent} is not a folder that can be written to")
    elif scheme and scheme not in SCHEMES:
        raise _unreachable(f"the scheme is none of {', '.join(SCHEMES)}")


def _ask(url: str) -> None:
    credentials, at, host = url.partition("://")[2].partition("@")
    if at:  # urllib would take user info for a part of the host's name; the health check needs none
        url = url.replace(f"{credentials}@{host}", host, 1)
    try:
        with urllib.request.urlopen(url, timeout=ANSWER_S):
            pass
    except urllib.error.HTTPError:
        pass  # an answer
    except (urllib.error.URLError, OSError, ValueError) as error:
        raise _unreachable(str(getattr(error, "reason", error))) from error


def _unreachable(reason: str) -> TrackingUnreachable:
    return TrackingUnreachable(
        f"MLFLOW_TRACKING_URI={shown_uri()}: the tracking store cannot be reached ({redact_text(reason)}). "
        "Start the server or correct the address, or unset MLFLOW_TRACKING_URI to track into the "
        "SQLite file in Baton's home."
    )
