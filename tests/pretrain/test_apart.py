"""Two ranks on nodes that share no folder; each has the job's folder at a different path."""

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from baton.tasks.core.job import json_lines
from baton.tasks.core.manifest import verify
from baton.tasks.pretrain.layout import Layout
from baton.tasks.pretrain.spec import CheckpointPolicy, PretrainSpec
from tests.pretrain.ranks import Ranks, engine
from tests.pretrain.test_anomaly import BAD, poisoned, spiky
from tests.pretrain.tiny import make_shards, metrics, pretrain_job, tiny_spec

TOGETHER = Layout(micro_batch=2, processes=2, distributed_optimizer=True)
APART = Layout(micro_batch=2, nodes=2, distributed_optimizer=True)


def on_two_nodes(folder: Path, data: Path, spec: PretrainSpec) -> list[Path]:
    """Create a job for two ranks on separate nodes, and return its folders by node."""
    spec = spec.model_copy(update={"layout": APART})
    jobs = [pretrain_job(folder / f"node-{node}" / "job", data, spec) for node in (0, 1)]
    for job in jobs:
        words = json.loads((job / "spec.json").read_text())
        (job / "spec.json").write_text(json.dumps(words | {"storage": "s3://bucket"}))
    return jobs


def ranks(jobs: list[Path], stop_after: int = 0) -> Ranks:
    return Ranks(2, jobs[0].parent, _train, jobs, stop_after)


def _train(jobs: list[Path], stop_after: int) -> None:
    os.environ |= {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    from baton.tasks.core.job import main
    from baton.tasks.pretrain.train import work
    from baton.tasks.pretrain.trainer import Trainer

    if stop_after:  # acts like SIGTERM
        Trainer._any_rank_stopping = lambda self: self.state.step == stop_after  # type: ignore[method-assign]
    sys.argv = ["baton.tasks.pretrain.train", str(jobs[int(os.environ["RANK"])])]
    main(work)


@dataclass
class Reference:
    """A run whose ranks share a folder."""

    data: Path
    spec: PretrainSpec
    job: Path

    def assert_equal(self, job: Path) -> None:
        assert metrics(job) == metrics(self.job)
        assert verify(job / "output").digest == verify(self.job / "output").digest


def reference(folder: Path, data: Path, spec: PretrainSpec) -> Reference:
    spec = spec.model_copy(update={"layout": TOGETHER})
    job = pretrain_job(folder / "shared", data, spec)
    engine(job).succeed()
    return Reference(data, spec, job)


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    folder = tmp_path_factory.mktemp("usual")
    return reference(folder, make_shards(folder / "data"), tiny_spec())


def test_the_first_node_has_all_of_the_result_and_the_other_none(usual: Reference, tmp_path: Path) -> None:
    first, other = on_two_nodes(tmp_path, usual.data, usual.spec)
    ranks([first, other]).succeed()
    usual.assert_equal(first)
    assert not (other / "output").exists() and not [*(other / "work/checkpoints").glob("*")]


@pytest.mark.parametrize("lost", [0, 1])
def test_a_node_that_was_replaced_resumes_with_the_first_ones_checkpoint(
    usual: Reference, tmp_path: Path, lost: int
) -> None:
    """The launcher of a new first node gets the checkpoint from storage (tests/core/test_offsite.py)."""
    jobs = on_two_nodes(tmp_path, usual.data, usual.spec)
    assert ranks(jobs, stop_after=3).end()[0]
    assert [path.name for path in (jobs[0] / "work/checkpoints").iterdir()] == ["step-00000003"]
    fresh = on_two_nodes(tmp_path / "fresh", usual.data, usual.spec)
    if lost == 0:
        (jobs[0] / "work/checkpoints").rename(fresh[0] / "checkpoints")
        (fresh[0] / "work").mkdir()
        (fresh[0] / "checkpoints").rename(fresh[0] / "work/checkpoints")
        (jobs[0] / "metrics.jsonl").rename(fresh[0] / "metrics.jsonl")
    jobs[lost] = fresh[lost]
    stale = jobs[1] / "work/checkpoints/step-00000005"  # a checkpoint of an attempt that the first node does not know
    stale.mkdir(parents=True)
    (stale / "manifest.json").write_text("{}")
    ranks(jobs).succeed()
    usual.assert_equal(jobs[0])
    assert "continuing from step 3" in (jobs[0].parent / "rank-0.txt").read_text()


def test_a_damaged_checkpoint_is_passed_over_on_every_node(usual: Reference, tmp_path: Path) -> None:
    spec = usual.spec.model_copy(update={"checkpoints": CheckpointPolicy(every=2)})
    jobs = on_two_nodes(tmp_path, usual.data, spec)
    assert ranks(jobs, stop_after=4).end()[0]
    # the files of the other node's rank
    damaged = next((jobs[0] / "work/checkpoints/step-00000004").glob("__1_*.distcp"))
    damaged.write_bytes(bytes(damaged.stat().st_size))
    ranks(jobs).succeed()
    usual.assert_equal(jobs[0])
    assert "continuing from step 2" in (jobs[0].parent / "rank-0.txt").read_text()


def test_all_damaged_ends_the_run_on_every_node(usual: Reference, tmp_path: Path) -> None:
    jobs = on_two_nodes(tmp_path, usual.data, usual.spec)
    assert ranks(jobs, stop_after=3).end()[0]
    (checkpoint,) = (jobs[0] / "work/checkpoints").iterdir()
    (checkpoint / "common.pt").unlink()
    assert all(ranks(jobs).end())
    for job in jobs:
        assert "every checkpoint is damaged" in json.loads((job / "result.json").read_text())["error"]


def test_both_nodes_roll_back(tmp_path: Path) -> None:
    spec = spiky(on_spike="roll_back").model_copy(update={"layout": TOGETHER})
    expected = reference(tmp_path, poisoned(tmp_path, spiky(), {BAD: "random"}), spec)
    first, other = on_two_nodes(tmp_path, expected.data, spec)
    ranks([first, other]).succeed()
    (entry,) = json_lines(first / "anomalies.jsonl")
    assert (entry["step"], entry["reaction"]) == (BAD, "roll_back")
    expected.assert_equal(first)


def test_both_nodes_count_the_anomalies_before_a_restart(tmp_path: Path) -> None:
    """The other node has a new disk."""
    spec = spiky(on_spike="skip", limit=1).model_copy(update={"layout": TOGETHER})
    data = poisoned(tmp_path, spiky(), {BAD: "random", BAD + 3: "random"})
    jobs = on_two_nodes(tmp_path, data, spec)
    assert ranks(jobs, stop_after=BAD + 1).end()[0]
    jobs[1] = on_two_nodes(tmp_path / "fresh", data, spec)[1]
    assert all(ranks(jobs).end())
    for job in jobs:
        assert (
            "already skipped or rolled back (anomalies.limit)" in json.loads((job / "result.json").read_text())["error"]
        )
