"""`make survive`: a pretraining pod is killed, and the run continues in another pod with its own disk."""

import time
from pathlib import Path

import pytest

from baton.tasks.core.manifest import verify
from baton.tasks.core.stored import fetch, send
from baton.tasks.data.artifact import TokenizedCorpus
from baton.tasks.pretrain.layout import Layout
from baton.tasks.pretrain.spec import CheckpointPolicy
from tests.pretrain.ranks import engine
from tests.pretrain.tiny import make_shards, metrics, pretrain_job, tiny_spec
from tests.s3 import S3
from tests.stage.pod import start

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

EVERY = 75
SPEC = tiny_spec(steps=300, layout=Layout(micro_batch=2), checkpoints=CheckpointPolicy(every=EVERY), validate_every=150)


def test_a_killed_pod_costs_at_most_one_checkpoint_interval_and_changes_nothing(s3: S3, tmp_path: Path) -> None:
    data = TokenizedCorpus.from_directory(make_shards(tmp_path / "data/shards"))
    reference = pretrain_job(tmp_path / "undisturbed", Path(data.place), SPEC)
    engine(reference).succeed()

    storage = f"{s3.address}/pretrain"
    with s3.flyte(tmp_path):
        words = ("pretrain", SPEC.model_dump_json(), send(data.place, storage))
        first = start(s3, tmp_path, storage, *words)
        while not any(key.endswith("manifest.json") for key in s3.keys("pretrain/jobs")):  # the first checkpoint
            assert first.process.poll() is None, first.succeed()
            time.sleep(0.05)
        first.kill()
        reached = first.metrics()[-1]["step"]

        second = start(s3, tmp_path, storage, *words)
        made = second.succeed()
        began = int(made["said"].partition("work/checkpoints/step-")[2][:8])
        assert 0 <= reached - began <= EVERY
        assert metrics(second.job) == metrics(reference)
        assert verify(fetch(made["place"], made["digest"])).digest == verify(reference / "output").digest

    third = start(s3, tmp_path, storage, *words)
    assert third.succeed()["digest"] == made["digest"]
    assert not (third.home / "jobs").exists()
