"""A pod whose engine needs more memory than its cgroup has: the kernel kills the engine, and the stage reports it."""

import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests.cluster.cgroup import Cgroup, can_be_made
from tests.s3 import S3
from tests.stage.pod import Pod, start

pytestmark = pytest.mark.long

MIB = 2**20
LIMIT = 700  # MiB; the stage's own process uses about 250
PLANNED = {"pod": {"resources": {"memory": "2Gi"}, "planned_memory": "3Gi"}}  # the recipe sets the first
TOO_MUCH = {"text": "ab", "times": 500 * MIB, **PLANNED}


@pytest.fixture
def cgroup() -> Iterator[Cgroup]:
    """A cgroup with LIMIT."""
    if not can_be_made():
        pytest.skip("needs root, and a separate cgroup with a memory limit")
    with Cgroup(f"baton-{uuid4().hex[:8]}", {"memory": f"{LIMIT}Mi"}) as made:
        yield made


def pod(server: S3, folder: Path, storage: str, cgroup: Cgroup, spec: dict[str, Any], **environment: str) -> Pod:
    started = start(server, folder, storage, "make", json.dumps(spec), **environment)
    cgroup.add(started.process.pid)  # the interpreter is still starting
    return started


def output_of(ended: Pod) -> str:
    """Return the output without the terminal's line breaks."""
    return " ".join(ended.process.communicate()[1].split())


def living(begin: Callable[[], Pod]) -> tuple[Pod, str]:
    """Return a pod whose engine alone was killed, and its output. While the memory of a killed engine is freed,
    which takes a busy machine some 50 ms, Linux 6.18 may kill the pod's own process as well; otherwise, one attempt
    would suffice."""
    for _ in range(5):
        started = begin()
        output = output_of(started)
        if started.process.returncode != -signal.SIGKILL:
            return started, output
    raise AssertionError("in five attempts the pod's own process was killed for memory, not its engine alone")


def test_a_kill_for_memory_is_named_and_its_retry_is_spared(s3: S3, tmp_path: Path, cgroup: Cgroup) -> None:
    storage = f"{s3.address}/{uuid4().hex}"
    first, output = living(lambda: pod(s3, tmp_path, storage, cgroup, TOO_MUCH))
    sentence = (
        f"make: killed for memory at {LIMIT} MiB, the limit here; the recipe sets 2,048 MiB; the plan's estimate is "
        "3,072 MiB. "
        "Set pod.resources.memory of make in the recipe"
    )
    assert sentence in output
    (record,) = (first.home / "executions").glob("*/make-*/run.json")
    assert json.loads(record.read_text())["error"].startswith(sentence)

    retry = pod(s3, tmp_path, storage, cgroup, TOO_MUCH, FLYTE_ATTEMPT_NUMBER="1")
    assert sentence in output_of(retry) and not retry.starts_made()
    another = pod(s3, tmp_path, storage, cgroup, TOO_MUCH, FLYTE_INTERNAL_EXECUTION_ID="e1")
    another.process.communicate()
    assert another.starts_made()  # a person restarts it


def test_the_engine_is_killed_before_its_launcher(s3: S3, tmp_path: Path, cgroup: Cgroup) -> None:
    """The engine uses most of the limit here. The launcher must survive to report the reason."""
    storage = f"{s3.address}/{uuid4().hex}"
    _, output = living(lambda: pod(s3, tmp_path, storage, cgroup, TOO_MUCH, POD_BALLAST_MIB="200"))
    assert f"make: killed for memory at {LIMIT} MiB" in output
