"""`make survive`: pretraining on two nodes that share only storage and no folder."""

import time
from pathlib import Path

import pytest

from baton.infra.process.heartbeat import read_beats
from baton.tasks.core.manifest import verify
from baton.tasks.core.stored import fetch, send
from baton.tasks.data.artifact import TokenizedCorpus
from baton.tasks.pretrain.layout import Layout
from baton.tasks.pretrain.spec import CheckpointPolicy, PretrainSpec
from tests.pretrain.ranks import engine
from tests.pretrain.tiny import make_shards, metrics, pretrain_job, tiny_spec
from tests.s3 import S3
from tests.stage.nodes import Nodes

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

EVERY = 40
LAYOUTS = {
    "DP2-DO": Layout(nodes=2, micro_batch=2, distributed_optimizer=True),
    "PP2": Layout(nodes=2, micro_batch=2, pipeline=2),
}


def spec_of(layout: Layout, steps: int) -> PretrainSpec:
    return tiny_spec(steps=steps, layout=layout, checkpoints=CheckpointPolicy(every=EVERY), validate_every=steps // 2)


def nodes(s3: S3, folder: Path, storage: str, spec: PretrainSpec, data: str) -> Nodes:
    return Nodes(s3, folder, storage, "pretrain", spec.model_dump_json(), data)


def digest(job: Path) -> str:
    return verify(job / "output").digest


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return Path(TokenizedCorpus.from_directory(make_shards(tmp_path / "data/shards")).place)


def undisturbed(folder: Path, data: Path, spec: PretrainSpec) -> Path:
    """Run the same layout in processes of one machine, which share a folder."""
    layout = spec.layout.model_copy(update={"nodes": 1, "processes": spec.layout.world})
    job = pretrain_job(folder, data, spec.model_copy(update={"layout": layout}))
    engine(job).succeed()
    return job


@pytest.mark.parametrize("layout", LAYOUTS)
def test_two_nodes_make_what_they_make_with_a_shared_folder(s3: S3, tmp_path: Path, data: Path, layout: str) -> None:
    spec, storage = spec_of(LAYOUTS[layout], steps=60), f"{s3.address}/{layout}"
    reference = undisturbed(tmp_path / "shared", data, spec)
    with s3.flyte(tmp_path):
        place = send(str(data), storage)
        first = nodes(s3, tmp_path, storage, spec, place).succeed()
        made = first.succeed()
        assert metrics(first.job) == metrics(reference)
        assert verify(fetch(made["place"], made["digest"])).digest == digest(reference)
        again = nodes(s3, tmp_path, storage, spec, place).succeed()  # both find the result
        assert again.succeed()["digest"] == made["digest"]


@pytest.mark.parametrize("lost", [0, 1])
def test_a_lost_node_costs_at_most_one_checkpoint_interval_and_changes_nothing(
    s3: S3, tmp_path: Path, data: Path, lost: int
) -> None:
    spec, storage = spec_of(LAYOUTS["DP2-DO"], steps=300), f"{s3.address}/lost-{lost}"
    reference = undisturbed(tmp_path / "shared", data, spec)
    with s3.flyte(tmp_path):
        place = send(str(data), storage)
        before = nodes(s3, tmp_path, storage, spec, place)
        while not any(key.endswith("manifest.json") for key in s3.keys(f"lost-{lost}/jobs")):  # the first checkpoint
            assert all(pod.process.poll() is None for pod in before.pods)
            time.sleep(0.05)
        before.pods[lost].kill()
        survivor = before.pods[1 - lost]
        _, output = survivor.process.communicate(timeout=120)  # the process ends by itself, and a retry may help
        assert survivor.process.returncode != 0 and "FlyteRecoverableException" in output, output[-5000:]
        reached = read_beats(survivor.job, [1 - lost])[1 - lost].step

        first = nodes(s3, tmp_path, storage, spec, place).succeed()
        made = first.succeed()
        began = int(made["said"].partition("work/checkpoints/step-")[2][:8])
        assert 0 < began <= reached
        assert metrics(first.job) == metrics(reference)
        assert verify(fetch(made["place"], made["digest"])).digest == digest(reference)
