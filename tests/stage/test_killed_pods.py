"""A stage in consecutive pods: processes in separate homes that share S3."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from flytekit.exceptions.user import FlyteRecoverableException

from baton.infra.process.launch import EngineFailed
from baton.tasks.core.manifest import digest_in, verify
from baton.tasks.run import retryable
from tests.pretrain.tiny import write_job
from tests.s3 import S3
from tests.source import ROOT
from tests.stage.pod import Pod, start

pytestmark = pytest.mark.long

SPEC: dict[str, Any] = {"steps": 40, "every": 5, "step_s": 0.25}


class Cluster:
    """The pods of one job."""

    def __init__(self, server: S3, folder: Path) -> None:
        self.server, self.folder, self.storage = server, folder, f"{server.address}/{uuid4().hex}"

    def pod(self, **changes: Any) -> Pod:
        return start(self.server, self.folder, self.storage, "counting", json.dumps(SPEC | changes))

    def kept(self) -> list[int]:
        """Return the steps whose checkpoints are in storage."""
        keys = self.server.keys(f"{self.storage}/jobs".removeprefix("s3://flyte/"))
        return sorted(int(key.split("/step-")[1].split("/")[0]) for key in keys if key.endswith("manifest.json"))

    def wait_for_checkpoint(self, pod: Pod) -> None:
        while not self.kept():
            assert pod.process.poll() is None, pod.succeed()
            time.sleep(0.1)


@pytest.fixture
def cluster(s3: S3, tmp_path: Path) -> Cluster:
    return Cluster(s3, tmp_path)


def test_a_killed_pod_is_continued_in_a_fresh_one_and_what_is_done_is_found(cluster: Cluster) -> None:
    first = cluster.pod()
    cluster.wait_for_checkpoint(first)
    first.kill()
    *_, newest = cluster.kept()
    second = cluster.pod()
    made = second.succeed()
    assert second.starts() == [newest]
    assert [line["step"] for line in second.metrics()] == list(range(1, SPEC["steps"] + 1))
    assert made["digest"] == undisturbed(cluster.folder)
    address, _, identity = made["place"].rpartition("/")
    assert (address, digest_in(identity)) == (f"{cluster.storage}/artifacts", made["digest"])
    assert cluster.kept() == []  # they are not needed any more
    third = cluster.pod()
    again = third.succeed()
    assert (again["place"], again["digest"], third.starts()) == (made["place"], made["digest"], [])


def undisturbed(folder: Path) -> str:
    """The digest of the same job, run on a separate disk without interruption."""
    job = write_job(folder / "undisturbed", "counting", "text", SPEC | {"step_s": 0})
    words = [sys.executable, "-m", "tests.stage.counting", str(job)]
    subprocess.run(words, cwd=ROOT, env=os.environ | {"TOY_STARTS": str(folder / "starts")}, check=True)
    return verify(job / "output").digest


def test_sigterm_leaves_the_last_step_in_storage(cluster: Cluster) -> None:
    pod = cluster.pod()
    cluster.wait_for_checkpoint(pod)
    pod.stop()
    assert cluster.kept()[-1] == pod.metrics()[-1]["step"]


@pytest.mark.parametrize("curable", [True, False])
def test_what_another_attempt_may_cure_is_retryable_for_flyte(curable: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLYTE_INTERNAL_EXECUTION_ID", "e0")
    with pytest.raises(FlyteRecoverableException if curable else EngineFailed, match="killed by SIGKILL"), retryable():
        raise EngineFailed("sft was killed by SIGKILL", curable)
