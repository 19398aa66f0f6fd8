"""The log of a pod with a trivial stage contains only the stage's own output. All data passes through a real S3
server."""

import os
import socket
import subprocess
import sys
import tarfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from flytekit.core.context_manager import FlyteContextManager
from flytekit.core.type_engine import TypeEngine

from baton.infra.flyte.hooks import POD_ENVIRONMENT
from baton.infra.flyte.options import OPTIONS, Options
from tests.source import ROOT
from tests.stage.engines import MakeSpec

pytestmark = pytest.mark.long

BIN = Path(sys.executable).parent
KEYS = {"FLYTE_AWS_ACCESS_KEY_ID": "x", "FLYTE_AWS_SECRET_ACCESS_KEY": "x", "AWS_DEFAULT_REGION": "us-east-1"}


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    """The address of an S3 server that has a bucket `flyte` with the code and a stage's inputs."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [str(BIN / "moto_server"), "-H", "127.0.0.1", "-p", str(port)]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            server.terminate()


@pytest.fixture(scope="module")
def logs(s3: str, tmp_path_factory: pytest.TempPathFactory) -> dict[bool, str]:
    """A pod's log, without and with the environment of Baton's task containers."""
    folder = tmp_path_factory.mktemp("pod")
    with tarfile.open(folder / "fast.tar.gz", "w:gz") as tar:
        for name in ("baton/__init__.py", "images", "infra", "tasks", "workflows", "tests/__init__.py", "tests/stage"):
            tar.add(ROOT / name, name)
    inputs = {"spec": MakeSpec(), OPTIONS: Options()}
    context = FlyteContextManager.current_context()
    literals = TypeEngine.dict_to_literal_map(context, inputs, {"spec": MakeSpec, OPTIONS: Options})
    (folder / "inputs.pb").write_bytes(literals.to_flyte_idl().SerializeToString())
    while True:
        try:
            put(f"{s3}/flyte", b"")  # creates the bucket
            break
        except OSError:
            time.sleep(0.2)
    for name in ("fast.tar.gz", "inputs.pb"):
        put(f"{s3}/flyte/{name}", (folder / name).read_bytes())
    return {ours: pod(folder / str(ours), s3, POD_ENVIRONMENT if ours else {}) for ours in (False, True)}


def put(address: str, content: bytes) -> None:
    octets = {"Content-Type": "application/octet-stream"}
    urllib.request.urlopen(urllib.request.Request(address, content, octets, method="PUT"), timeout=60).close()


def pod(home: Path, s3: str, environment: dict[str, str]) -> str:
    """Run the command line that Flyte gives to a pod, and return its output."""
    home.mkdir()
    flyte = {
        "FLYTE_INTERNAL_EXECUTION_ID": "e1",
        "FLYTE_AWS_ENDPOINT": s3,
        "MLFLOW_TRACKING_URI": f"sqlite:///{home}/mlflow.db",
    }
    own = {"BATON_HOME": str(home / "home"), "TOY_STARTS": str(home / "starts"), "PATH": f"{BIN}:{os.environ['PATH']}"}
    execute = [
        "pyflyte-execute", "--inputs", "s3://flyte/inputs.pb", "--output-prefix", f"s3://flyte/out/{home.name}",
        "--raw-output-data-prefix", f"s3://flyte/raw/ab/{home.name}", "--checkpoint-path", "s3://flyte/check",
        "--prev-checkpoint", '""', "--resolver", "flytekit.core.python_auto_container.default_task_resolver", "--",
        "task-module", "tests.stage.chain", "task-name", "make",
    ]  # fmt: skip
    fetch = ["pyflyte-fast-execute", "--additional-distribution", "s3://flyte/fast.tar.gz", "--dest-dir", "."]
    ended = subprocess.run(
        [*fetch, "--", *execute],
        cwd=home,
        env=os.environ | KEYS | flyte | own | environment,
        check=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return ended.stdout


def test_open_sessions_are_not_errors(logs: dict[bool, str]) -> None:
    assert "✓ make" in logs[True]
    assert "Unclosed" not in logs[True] and "Traceback" not in logs[True]


def test_flytekit_still_calls_them_errors(logs: dict[bool, str]) -> None:
    """If this fails, baton.infra.flyte.install.filter_pod_log can be removed."""
    assert "Unclosed client session" in logs[False]
