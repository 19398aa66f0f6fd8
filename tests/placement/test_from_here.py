"""A placed stage of a local run, which uses the same connector in this process."""

import asyncio
import gc
import logging
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("sky", reason="SkyPilot is not in images/gpu.txt")
from flyteidl.core.execution_pb2 import TaskExecution
from sky.server.common import get_server_url, is_api_server_local

from baton.infra.flyte import connector
from baton.infra.flyte.connector import SkyJob, SkyPilotConnector
from baton.infra.flyte.placed_run import PlacementFailed
from baton.infra.placement.config import Placement
from baton.infra.placement.job import Order
from baton.infra.tracking.execution import close_execution
from baton.tasks.data.spec import CorpusSpec
from baton.tasks.data.task import prepare_corpus
from tests.placement.api_server import ApiServer, api_server, until


@pytest.fixture
def sky(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiServer]:
    with api_server() as server:
        monkeypatch.setenv("SKYPILOT_API_SERVER_ENDPOINT", server.url)
        monkeypatch.setenv("BATON_HOME", str(tmp_path))
        monkeypatch.setenv("FLYTE_LOCAL_CACHE_ENABLED", "false")
        forget()
        yield server
        close_execution()
    forget()


def forget() -> None:
    """Clear the address of the server that SkyPilot's client caches."""
    get_server_url.cache_clear()
    is_api_server_local.cache_clear()


def test_a_failed_job_tells_its_last_lines_its_place_and_its_recoveries(sky: ApiServer, tmp_path: Path) -> None:
    sky.log = "".join(f"line {number}\n" for number in range(100))

    def fail() -> None:
        until(lambda: sky.jobs)
        sky.end("FAILED", cloud="Slurm", region="alpha", cluster_resources="1x(cpus=2)", recovery_count=2)

    threading.Thread(target=fail, daemon=True).start()
    with pytest.raises(PlacementFailed) as failed:
        prepare_corpus(spec=CorpusSpec(placement=Placement(infra=["slurm/alpha"], storage=str(tmp_path))))
    message = str(failed.value)
    assert "job 1 failed on Slurm/alpha (1x(cpus=2)), recovered 2 times" in message
    assert "line 98\nline 99\nFull log: sky jobs logs 1" in message
    assert len(message.splitlines()) <= 8


JOB = SkyJob("baton-x-0", "/out", Order({"infra": ["slurm/alpha"]}, "/shared", "e", {}), "", ["true"])


def test_a_server_that_begins_no_request_is_reported_with_the_way_out(
    sky: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server is healthy; only its executors have ended."""
    monkeypatch.setattr(connector, "STUCK_S", 4.0)
    asked = SkyPilotConnector()
    with sky.hanging("/api/get"):
        assert "waiting for SkyPilot's API server" in (asyncio.run(asked.get(JOB)).message or "")
        resource = asyncio.run(asked.get(JOB))
    assert resource.phase == TaskExecution.WAITING_FOR_RESOURCES
    assert "answers, but has not begun a request for" in (resource.message or "")
    assert "sky api stop; sky api start" in (resource.message or "")


def test_an_error_of_a_query_is_raised_once_and_not_reported_by_asyncio(
    sky: ApiServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(_: str) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr("baton.infra.placement.api_server.jobs_named", broken)
    with caplog.at_level(logging.ERROR, "asyncio"):
        with pytest.raises(ZeroDivisionError):
            asyncio.run(SkyPilotConnector().get(JOB))
        gc.collect()
    assert not caplog.records
