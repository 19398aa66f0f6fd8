"""`python -m infra.lineage` as a process: what waits in the spool is there when it answers."""

import subprocess
import sys
import time
from pathlib import Path

import httpx

from infra.tracking.spool import Execution, write_execution
from tests.tracking.conftest import free_port

PATIENCE_S = 120.0


def test_what_waits_in_the_spool_is_sent_before_the_page_is_shown(home: Path) -> None:
    """Of a run that was killed before MLflow had a word of it."""
    folder = home / "executions" / "20260101-000000-000-abcd"
    write_execution(folder, Execution(folder.name, "killed run", {}, {}, "command", time.time()))
    port = free_port()
    words = [sys.executable, "-m", "infra.lineage", "--port", str(port)]
    server = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    try:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                page = httpx.get(f"http://127.0.0.1:{port}/lineage/executions.json", trust_env=False)
                break
            except httpx.TransportError:
                assert server.poll() is None and time.monotonic() < deadline
                time.sleep(0.2)
        assert "killed run" in page.text and "KILLED" in page.text
    finally:
        server.terminate()
        _, said = server.communicate(timeout=PATIENCE_S)
    assert "sending 1 executions that wait" in said
