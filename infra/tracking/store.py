"""Locate MLflow's store, and check that it is reachable. Does not import MLflow."""

import logging
import os
from base64 import b64encode
from pathlib import Path
from urllib.parse import urlsplit

from blake3 import blake3

from baton.infra.commands import command
from baton.infra.paths import baton_home, quiet
from baton.infra.pod import this_pod
from baton.infra.tracking.redact import redact_text
from baton.infra.tracking.spool import has_pushed_to
from baton.infra.tracking.sqlite_file import TrackingUnreachable, check_file, store_file

__all__ = ["TrackingUnreachable"]

EXPERIMENT = "baton"  # unless MLFLOW_EXPERIMENT_NAME says otherwise
ANSWER_S = 5.0  # timeout of a server's health check
SCHEMES = ("postgresql", "mysql", "mssql", "databricks")  # beside http, https and sqlite
LONGEST_HOME = 480  # bytes; SQLite opens no file whose path, with that of its journal, has more than 512
HOME_OF_STORE = (
    f"a folder whose path has at most {LONGEST_HOME} bytes and no ? or %, which the store's SQLite file cannot have; "
    "or set MLFLOW_TRACKING_URI"
)
ADDRESSES = f"http(s)://HOST, sqlite:///FILE, or one with {', '.join(f'{scheme}://' for scheme in SCHEMES)}"

# By MLflow's own defaults, one request is retried for several minutes, and clients fetch files from the server's store,
# at an address that may be known only in the server's network
_DEFAULTS = {
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",  # printing takes two requests per line
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",  # it fills a log with a line for each file
    "MLFLOW_ENABLE_PROXY_MULTIPART_DOWNLOAD": "false",
    "MLFLOW_ENABLE_PROXY_MULTIPART_UPLOAD": "false",
    "GIT_PYTHON_REFRESH": "quiet",
}
# Credentials that MLflow's client sends and the check does not
OTHER_CREDENTIALS = ("MLFLOW_TRACKING_AUTH", "MLFLOW_TRACKING_AWS_SIGV4")
MLFLOW_CREDENTIALS = Path("~/.mlflow/credentials")


class PushFailed(Exception):
    """A record could not be uploaded now; it stays in the spool."""


def tracking_uri() -> str:
    """MLFLOW_TRACKING_URI, or an SQLite file in Baton's home. Raises TrackingUnreachable if the URI is no address."""
    uri = os.environ.get("MLFLOW_TRACKING_URI")
    if uri and not is_address(uri):
        raise TrackingUnreachable(f"MLFLOW_TRACKING_URI={redact_text(uri)}: must be {ADDRESSES}. Correct it, {_fix()}.")
    home = baton_home()
    if not uri and not can_hold_store(home):
        raise TrackingUnreachable(f"BATON_HOME={home}: must be {HOME_OF_STORE}.")
    return uri or f"sqlite:///{home / 'mlflow.db'}"


def can_hold_store(home: Path) -> bool:
    """Return whether SQLite can open a file in this folder by its address: SQLAlchemy ends the path at `?`, and decodes
    `%`."""
    return not set("?%") & set(str(home)) and len(os.fsencode(home)) <= LONGEST_HOME


def is_address(uri: str) -> bool:
    """Return whether a URI is one of `ADDRESSES`. MLflow refuses folders (`./mlruns`, `file:///…`) on opening them."""
    try:
        parts = urlsplit(uri)
        if parts.scheme in ("http", "https"):
            return bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
    scheme = parts.scheme.partition("+")[0]
    return uri == "databricks" or scheme in SCHEMES or (scheme == "sqlite" and bool(uri.partition(":///")[2]))


def artifact_location() -> str | None:
    """The experiment's artifact location in Baton's home, or None, which leaves it to the configured store."""
    return None if os.environ.get("MLFLOW_TRACKING_URI") else (baton_home() / "mlartifacts").as_uri()


def passed_on(uri: str | None = None) -> dict[str, str]:
    """The environment of a job on another machine for this store, if it is a server. The URI may hold a password."""
    uri = os.environ.get("MLFLOW_TRACKING_URI", "") if uri is None else uri
    of_server = is_address(uri) and urlsplit(uri).scheme in ("http", "https", "databricks")
    return {"MLFLOW_TRACKING_URI": uri} if of_server else {}


def experiment_name() -> str:
    return os.environ.get("MLFLOW_EXPERIMENT_NAME") or EXPERIMENT


def shown_uri() -> str:
    """The tracking URI without secrets."""
    return redact_text(tracking_uri())


def store_digest(uri: str) -> str:
    """An identifier of the store and its experiment, by digests because addresses can contain secrets."""
    return f"{_digest(uri)}-{blake3(experiment_name().encode()).hexdigest()[:16]}"


def was_used(uri: str) -> bool:
    """Return whether this machine has sent records to a store, in any experiment."""
    return has_pushed_to(f"{_digest(uri)}-")


def _digest(uri: str) -> str:
    return blake3(str(store_file(uri) or uri).encode()).hexdigest()[:16]


def tracking_hint() -> str:
    """The command or address to see the runs."""
    if urlsplit(tracking_uri()).scheme in ("http", "https"):
        return f"{shown_uri()} (experiment {experiment_name()})"
    return command(f"baton ui --store {shown_uri()}")


def prepare_client() -> None:
    """Configure MLflow before it is imported: no telemetry, little logging, short timeouts, files by the server."""
    quiet()
    for name, value in _DEFAULTS.items():
        os.environ.setdefault(name, value)
    if store_file(tracking_uri()):
        # a pooled connection would keep using the old file after a restore
        os.environ.setdefault("MLFLOW_SQLALCHEMYSTORE_POOLCLASS", "NullPool")
    # it logs a traceback for each database error that it also raises
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)


def check_reachable() -> None:
    """Check that the store is reachable and accepts the credentials, or is an SQLite file yet to be created. Any HTTP
    response but a refusal counts, since a proxy may guard the health check. Raises TrackingUnreachable."""
    uri = tracking_uri()
    if urlsplit(uri).scheme in ("http", "https"):
        _ask(uri.rstrip("/") + "/health")
    elif path := store_file(uri):
        used = was_used(uri)
        if path.exists() or used:
            check_file(path, used)
        if not os.access(path.parent, os.W_OK):
            raise _unreachable(f"{path.parent} is not a writable folder")


def _ask(url: str) -> None:
    import requests  # as MLflow's client does, with its settings, so that both see the same server

    given = os.environ.get
    user, password, token = (given(f"MLFLOW_TRACKING_{name}", "") for name in ("USERNAME", "PASSWORD", "TOKEN"))
    sent = f"Bearer {token}" if token else ""
    if user and password:
        sent = f"Basic {b64encode(f'{user}:{password}'.encode()).decode()}"
    insecure = given("MLFLOW_TRACKING_INSECURE_TLS", "").lower() in ("true", "1")
    try:
        answer = requests.get(
            url,
            headers={"Authorization": sent} if sent else {},
            timeout=ANSWER_S,
            verify=False if insecure else given("MLFLOW_TRACKING_SERVER_CERT_PATH") or True,
            cert=given("MLFLOW_TRACKING_CLIENT_CERT_PATH"),
        )
    except (requests.RequestException, OSError, ValueError) as error:
        raise _unreachable(str(error)) from error
    elsewhere = any(map(given, OTHER_CREDENTIALS)) or MLFLOW_CREDENTIALS.expanduser().exists()
    if answer.status_code == requests.codes.unauthorized and not elsewhere:  # not 403: a proxy may guard /health alone
        raise TrackingUnreachable(
            f"MLFLOW_TRACKING_URI={shown_uri()}: the tracking server refuses the user or the password (HTTP 401). "
            f"Set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, {_fix()}."
        )


def _unreachable(reason: str) -> TrackingUnreachable:
    return TrackingUnreachable(
        f"MLFLOW_TRACKING_URI={shown_uri()}: the tracking store is unreachable ({redact_text(reason)}). Start the "
        f"server or correct the address, {_fix()}."
    )


def _fix() -> str:
    if this_pod():  # whose disk is lost with it
        return "which pods get from the client that started the run, or from Flyte's default-env-vars"
    return "or unset MLFLOW_TRACKING_URI to use the SQLite file in Baton's home"
