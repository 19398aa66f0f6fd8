"""`baton ui` as a process, which uploads the spool before it serves."""

import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from baton.infra.tracking.spool import Execution, write_execution
from tests.tracking.conftest import free_port

PATIENCE_S = 120.0


def test_the_spool_is_uploaded_before_the_pages_are_served(home: Path) -> None:
    """The run was killed before anything was uploaded."""
    folder = home / "executions" / "20260101-000000-000-abcd"
    write_execution(folder, Execution(folder.name, "killed run", {}, {}, "command", time.time()))
    with pages() as (url, server):
        page = httpx.get(f"{url}/lineage/executions.json", trust_env=False)
        assert "killed run" in page.text and "KILLED" in page.text
        server.terminate()
        _, message = server.communicate(timeout=PATIENCE_S)
    assert "uploading 1 executions from the spool" in message


def test_a_store_that_is_missing_is_not_created_by_a_request(home: Path) -> None:
    with pages() as (url, _):
        search = f"{url}/ajax-api/2.0/mlflow/experiments/search?max_results=5"
        assert httpx.get(search, trust_env=False, timeout=PATIENCE_S).is_success
        (home / "mlflow.db").rename(home / "being-restored.db")
        assert httpx.get(search, trust_env=False, timeout=PATIENCE_S).is_server_error
        assert not (home / "mlflow.db").exists()
        (home / "being-restored.db").rename(home / "mlflow.db")
        assert httpx.get(search, trust_env=False, timeout=PATIENCE_S).is_success


def test_ipv6_s_own_host_is_answered_and_no_other(home: Path, empty_store: Path) -> None:
    shutil.copy(empty_store, home / "mlflow.db")
    with pages("::1", "--without-mlflow") as (url, _):
        assert httpx.get(f"{url}/lineage/executions", trust_env=False).status_code == 200
        others = {"host": "evil.example:5000"}
        assert httpx.get(f"{url}/lineage/executions", headers=others, trust_env=False).status_code == 400


@contextmanager
def pages(host: str = "127.0.0.1", *options: str) -> Iterator[tuple[str, "subprocess.Popen[str]"]]:
    """Yield the server of the pages once it answers."""
    port = free_port()
    words = [sys.executable, "-m", "baton", "ui", "--host", host, "--port", str(port), *options]
    server = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    at = f"[{host}]" if ":" in host else host
    url, deadline = f"http://{at}:{port}", time.monotonic() + PATIENCE_S
    try:
        while True:
            try:
                httpx.get(f"{url}/lineage/executions.json", trust_env=False)
                break
            except httpx.TransportError:
                assert server.poll() is None and time.monotonic() < deadline
                time.sleep(0.2)
        yield url, server
    finally:
        server.kill()
        server.wait()
