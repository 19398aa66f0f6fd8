"""`python -m infra.cluster check`, against the tests' admin and pods, and real connectors."""

import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from images import FAMILIES
from infra.cluster import checks
from infra.cluster.probe import looked
from tests.cluster.client import Client
from tests.cluster.pod import ROOT
from tests.cluster.propeller import Cluster


def check(config: Path, *words: str) -> tuple[int, dict[str, str]]:
    """Its exit code, and what it says of each thing."""
    command = [sys.executable, "-m", "infra.cluster", "check", "--config", str(config), *words]
    done = subprocess.run(command, cwd=ROOT, env=os.environ, capture_output=True, text=True, check=False)
    lines = [line[2:] for line in done.stdout.splitlines() if line[:2] in ("✓ ", "✗ ", "? ")]
    assert lines, done.stdout + done.stderr
    return done.returncode, {line[:16].strip(): line[16:].strip() for line in lines}


def run_what_is_created(cluster: Cluster) -> None:
    cluster.admin.created = lambda each: threading.Thread(target=cluster.execute, args=[each]).start()


def test_a_cluster_that_is_ready(cluster: Cluster, client: Client) -> None:
    uri = cluster.storage.for_pods  # a server that answers; the check asks for no more
    run_what_is_created(replace(cluster, environment={**cluster.environment, "MLFLOW_TRACKING_URI": uri}))
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
    assert said["MLflow in a pod"] == f"ok: {uri}"
    assert "GiB of shared memory" in said["limits"]
    assert code == 0


def test_a_pod_without_a_tracking_server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert looked()["MLflow in a pod"].startswith("failed: MLFLOW_TRACKING_URI names no server")


def test_nothing_is_there(tmp_path: Path) -> None:
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
