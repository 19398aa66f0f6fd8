"""An interrupted run continues from its newest checkpoint, bit for bit."""

import json
import os
import resource
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from baton.tasks.core.manifest import MANIFEST, verify
from baton.tasks.pretrain.layout import Layout
from baton.tasks.pretrain.spec import CheckpointPolicy
from tests.pretrain.killing import LAYOUTS, Kills, again_in, kill_again_and_again, killable, outcome, undisturbed
from tests.pretrain.ranks import Ranks, engine, load_libraries
from tests.pretrain.tiny import make_shards, metrics, pretrain_job, tiny_spec


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    load_libraries(tmp_path_factory.mktemp("first"))
    return make_shards(tmp_path_factory.mktemp("data") / "shards")


def wait_for(condition: Callable[[], bool], job: Path) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline, (job / "rank-0.txt").read_text()[-3000:]
        time.sleep(0.005)


def run_to_step(job: Path, step: int) -> Ranks:
    ranks = engine(job)
    path = job / "metrics.jsonl"
    wait_for(lambda: path.exists() and path.read_text().count("\n") >= step, job)
    return ranks


@pytest.mark.long
@pytest.mark.parametrize("name", ["one process", "DP2-DO"])
def test_killed_at_random_moments_it_ends_as_if_it_had_not_been(name: str, data: Path, tmp_path: Path) -> None:
    """`make survive` has many more kills, more layouts, and torchrun."""
    spec = killable(LAYOUTS[name], steps=20)
    reference = pretrain_job(tmp_path / "undisturbed", data, spec)
    seconds = undisturbed(engine, reference)
    jobs = kill_again_and_again(engine, tmp_path, data, spec, seconds, Kills(4), seed=name)
    assert [outcome(job) for job in jobs] == [outcome(reference)] * len(jobs)


def test_killed_while_it_hands_over_it_hands_over_again(data: Path, tmp_path: Path) -> None:
    spec = tiny_spec(layout=LAYOUTS["DP2-DO"])
    reference = pretrain_job(tmp_path / "undisturbed", data, spec)
    engine(reference).succeed()
    job = pretrain_job(tmp_path / "killed", data, spec)
    for delay in (0, 0.002, 0.005):  # seconds; after a longer delay, the output has more files
        ranks = engine(job)
        wait_for((job / "output").exists, job)
        time.sleep(delay)
        ranks.kill()
        if (job / "output" / MANIFEST).exists():
            break  # the process ended before the kill
        shutil.rmtree(job / "output")  # wait_for must not find the old folder
    engine(job).succeed()
    assert outcome(job) == outcome(reference)


def test_sigterm_leaves_a_checkpoint_of_the_present_step(data: Path, tmp_path: Path) -> None:
    spec = tiny_spec(steps=2000, checkpoints=CheckpointPolicy(every=2000), layout=LAYOUTS["DP2-DO"])
    job = pretrain_job(tmp_path / "ended", data, spec)
    ranks = run_to_step(job, 2)
    for process in ranks.processes:
        os.kill(process.pid or 0, signal.SIGTERM)
    assert set(ranks.end()) == {128 + signal.SIGTERM}
    last_step = max(metrics(job))
    checkpoints = list((job / "work" / "checkpoints").iterdir())
    assert [path.name for path in checkpoints] == [f"step-{last_step:08d}"]
    assert verify(checkpoints[0]).facts["step"] == last_step


def test_a_damaged_checkpoint_is_reported_and_the_one_before_it_used(data: Path, tmp_path: Path) -> None:
    spec = tiny_spec(steps=30, layout=LAYOUTS["DP2-DO"])
    reference = pretrain_job(tmp_path / "undisturbed", data, spec)
    engine(reference).succeed()
    job = pretrain_job(tmp_path / "damaged", data, spec)
    checkpoints = job / "work" / "checkpoints"
    ranks = engine(job)
    wait_for(lambda: len(list(checkpoints.glob(f"step-*/{MANIFEST}"))) >= 2, job)
    ranks.kill()
    newest = max(path.parent for path in checkpoints.glob(f"step-*/{MANIFEST}"))
    with (newest / "__1_0.distcp").open("r+b") as stream:
        stream.seek(-1, os.SEEK_END)
        stream.write(b"\xff")
    engine(job).succeed()
    output = (job / "rank-0.txt").read_text()
    assert f"checkpoint {newest} is damaged: __1_0.distcp was changed. It is kept as" in output
    assert outcome(job) == outcome(reference)


@pytest.mark.long
def test_a_layout_may_be_changed_between_two_starts(data: Path, tmp_path: Path) -> None:
    """TP2 → TP1 x DP2 with the distributed optimizer → PP2 → one process."""
    reference = pretrain_job(tmp_path / "undisturbed", data, tiny_spec(steps=40, precision="fp32"))
    engine(reference).succeed()
    job = pretrain_job(tmp_path / "moved", data, tiny_spec(steps=40, precision="fp32", layout=LAYOUTS["TP2"]))
    for step, name in ((8, "DP2-DO"), (18, "PP2"), (28, "one process")):
        run_to_step(job, step).kill()
        again_in(job, LAYOUTS[name])
    engine(job).succeed()
    expected, found = metrics(reference), metrics(job)
    assert found.keys() == expected.keys()
    for step in expected:
        assert found[step]["loss"] == pytest.approx(expected[step]["loss"], rel=1e-4)
        assert found[step]["grad_norm"] == pytest.approx(expected[step]["grad_norm"], rel=1e-3)
        assert found[step]["lr"] == expected[step]["lr"]


def test_a_disk_that_is_full_ends_the_run_with_a_word(data: Path, tmp_path: Path) -> None:
    """The test limits the file size, which raises OSError in the background thread, as a full disk does."""
    spec = tiny_spec(steps=2000, checkpoints=CheckpointPolicy(every=4), layout=Layout(micro_batch=2))
    job = pretrain_job(tmp_path / "full", data, spec)
    ranks = run_to_step(job, 6)
    limit = 64 << 10  # a limit in bytes, below the size of a checkpoint's file and above that of all other files
    resource.prlimit(ranks.processes[0].pid or 0, resource.RLIMIT_FSIZE, (limit, limit))
    assert ranks.end() == [1]
    error = json.loads((job / "result.json").read_text())["error"]
    assert "could not be written" in error
    assert "File too large" in error
    assert "Free disk space, or lower checkpoints.keep_last" in error
