"""A rank of a real pretraining run dies: the launcher names it, restarts all ranks, and nothing is lost."""

import json
import os
import re
import signal
import threading
import time
from pathlib import Path

import pytest

from baton.infra.process.heartbeat import read_beats
from baton.infra.process.launch import Engine, run_engine
from baton.tasks.core.manifest import read_manifest
from baton.tasks.pretrain.layout import Layout
from baton.tasks.pretrain.spec import CheckpointPolicy
from tests.infra.test_launch import processes_of
from tests.pretrain.tiny import make_shards, metrics, pretrain_job, tiny_spec

pytestmark = pytest.mark.long

STEPS, KILLED_AT = 30, 7  # the newest checkpoint is that of step 5


def train(job: Path, data: Path) -> Path:
    """Train with two data parallel ranks under the launcher, and return the artifact."""
    spec = tiny_spec(steps=STEPS, layout=Layout(processes=2, micro_batch=2), checkpoints=CheckpointPolicy(every=5))
    request = json.loads((pretrain_job(job, data, spec) / "spec.json").read_text())
    engine = Engine("pretrain", "baton.tasks.pretrain.train", "1")
    return run_engine(engine, job, request, title="pretrain", processes=2, max_restarts=1)


def kill_rank_1_in_mid_run(job: Path) -> None:
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        beats = read_beats(job, [1])
        if beats and beats[1].step >= KILLED_AT:
            os.kill(beats[1].pid, signal.SIGKILL)
            return
        time.sleep(0.01)


def test_a_killed_rank_is_replaced_and_the_losses_are_those_of_an_undisturbed_run(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    data = make_shards(tmp_path / "shards")
    undisturbed = train(tmp_path / "undisturbed", data)
    killer = threading.Thread(target=kill_rank_1_in_mid_run, args=[tmp_path / "killed"])
    killer.start()
    output = train(tmp_path / "killed", data)
    killer.join()
    pattern = r"pretrain: rank 1 was killed by SIGKILL .* at step \d+, [\w-]+; starting again .* restart 1 of 1"
    assert re.search(pattern, capfd.readouterr().err)
    assert metrics(tmp_path / "killed") == metrics(tmp_path / "undisturbed")
    assert read_manifest(output).digest == read_manifest(undisturbed).digest
    assert not processes_of(tmp_path / "killed")
