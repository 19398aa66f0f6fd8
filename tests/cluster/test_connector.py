"""The calls of the tests' propeller to a connector: real gRPC, real deadlines."""

import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from tests.cluster.client import PYFLYTE, Client
from tests.cluster.propeller import Cluster, Done
from tests.tracking.conftest import START_S, free_port

EXAMPLES = Path(__file__).with_name("examples")


@pytest.fixture(scope="module")
def served(cluster: Cluster, client: Client, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster with `pyflyte serve connector`, which has three seconds to answer."""
    client.register(EXAMPLES / "examples.py")
    address, log = f"127.0.0.1:{free_port()}", tmp_path_factory.mktemp("connector") / "log.txt"
    words = ["--port", address.rpartition(":")[2], "--prometheus_port", str(free_port()), "--modules", "rental"]
    with log.open("wb") as stream:
        process = subprocess.Popen(
            [PYFLYTE, "serve", "connector", *words], cwd=EXAMPLES, stdout=stream, stderr=subprocess.STDOUT
        )
    try:
        with grpc.insecure_channel(address) as channel:
            grpc.channel_ready_future(channel).result(START_S)
        yield replace(cluster, connector=address, connector_deadline_s=3.0)
    finally:
        process.kill()
        process.wait()


def placed(cluster: Cluster, client: Client, outcome: str) -> Done:
    return cluster.execute(client.start("placed", outcome=outcome))


def test_its_outputs_are_the_task_s(served: Cluster, client: Client) -> None:
    done = placed(served, client, "an L4")
    assert done.outputs is not None, done.why()
    assert done.outputs.literals["o0"].scalar.primitive.string_value == "an L4"


def test_a_create_that_takes_too_long_is_a_user_s_error(served: Cluster, client: Client) -> None:
    done = placed(served, client, "slow")
    assert len(done.ran) == 1
    assert "DEADLINE_EXCEEDED" in str(done.failed) and done.failed and not done.failed.recoverable


def test_what_may_be_retried_is_said_to_be(served: Cluster, client: Client) -> None:
    done = placed(served, client, "no capacity")
    assert done.failed and done.failed.recoverable and str(done.failed) == "no place has capacity"
