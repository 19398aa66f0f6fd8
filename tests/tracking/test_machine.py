"""The recorded machine of a run."""

import json
import os

import pytest

from baton.infra.tracking.machine import links, machine
from baton.infra.tracking.remote_run import JOB, remote_place


def test_the_machine_is_reported() -> None:
    found = machine()
    assert found["cores"] == str(len(os.sched_getaffinity(0)))
    assert found["host"] and found["processor"] and float(found["memory_gb"]) > 0


def test_a_rented_machine_says_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    assert remote_place() == {}
    monkeypatch.setenv(JOB, "baton-pretrain-1")
    told = {"cluster_name": "baton-1", "cloud": "Slurm", "region": "alpha", "zone": None}
    monkeypatch.setenv("SKYPILOT_CLUSTER_INFO", json.dumps(told))
    assert remote_place() == {"job": "baton-pretrain-1", "cloud": "Slurm", "region": "alpha"}


def test_a_cluster_says_where_its_console_is(monkeypatch: pytest.MonkeyPatch) -> None:
    assert links() == {}
    monkeypatch.setenv("FLYTE_PLATFORM_CONSOLE_ENDPOINT", "https://flyte.example/")
    for name, value in {"PROJECT": "baton", "DOMAIN": "development", "ID": "abc"}.items():
        monkeypatch.setenv(f"FLYTE_INTERNAL_EXECUTION_{name}", value)
    assert links() == {"Flyte": "https://flyte.example/console/projects/baton/domains/development/executions/abc"}
