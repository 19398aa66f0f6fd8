"""`python -m infra.cluster check`, against the tests' admin and pods, and real connectors."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import yaml

from images import FAMILIES
from infra.cluster import checks
from tests.cluster.client import Client
from tests.cluster.pod import ROOT
from tests.cluster.propeller import Cluster
from tests.tracking.conftest import Server


def check(config: Path, *words: str) -> tuple[int, dict[str, str]]:
    """Its exit code, and what it says of each thing."""
    command = [sys.executable, "-m", "infra.cluster", "check", "--config", str(config), *words]
    done = subprocess.run(command, cwd=ROOT, env=os.environ, capture_output=True, text=True, check=False)
    lines = [line[2:] for line in done.stdout.splitlines() if line[:2] in ("✓ ", "✗ ", "? ")]
    assert lines, done.stdout + done.stderr
    return done.returncode, {line[:16].strip(): line[16:].strip() for line in lines}


@pytest.fixture
def running(tracked: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Executions are run as soon as they are created."""
    monkeypatch.setattr(
        tracked.admin, "created", lambda each: threading.Thread(target=tracked.execute, args=[each]).start()
    )


@pytest.mark.usefixtures("running")
def test_a_cluster_that_is_ready(client: Client, mlflow: Server) -> None:
    code, said = check(client.config)
    assert {name: words.partition(": ")[0] for name, words in said.items()} == {
        "admin": "ok",
        "images": "ok",
        "connector": "cannot be tried",
        "storage": "ok",
        "pod": "ok",
        "storage in a pod": "ok",
        "MLflow in a pod": "ok",
        "limits": "ok",
    }
    assert said["admin"].endswith("Flyte v1.16.8")
    assert said["MLflow in a pod"] == f"ok: {mlflow.uri}"
    assert "GiB of shared memory" in said["limits"]
    assert code == 0


def test_nothing_is_there(client: Client, tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump({"admin": {"endpoint": "127.0.0.1:9", "insecure": True}}))
    code, said = check(config, "--connector", "127.0.0.1:9")
    assert said["admin"].startswith("failed: 127.0.0.1:9 does not answer")
    assert said["images"].startswith("failed: baton-data, ")
    assert said["connector"].startswith("failed: 127.0.0.1:9")
    assert said["pod"].startswith("cannot be tried")
    assert code == 1


def test_it_knows_every_image() -> None:
    assert {*checks.FAMILIES} == {f"baton-{family}" for family in FAMILIES}
