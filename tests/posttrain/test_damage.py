"""A run with a damaged checkpoint resumes from the one before it."""

import resource
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from baton.tasks.core.checkpoints import CheckpointFolder
from baton.tasks.core.job import Job, StageError, open_job
from baton.tasks.core.manifest import MANIFEST, ArtifactError, read_manifest
from baton.tasks.posttrain import trainer
from baton.tasks.posttrain.methods import sft
from tests.posttrain.tiny import (
    complete_checkpoints,
    flip_a_bit,
    repeated_words,
    tiny_model,
    tiny_rows,
    without_times,
    write_job,
)

SPEC = {
    "data": "twice",
    "steps": 4,
    "batch_size": 4,
    "layout": {"micro_batch": 2},
    "warmup_steps": 1,
    "checkpoint_every": 1,
}


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def append(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0")


DAMAGES: dict[str, Callable[[Path], Any]] = {
    "a bit flipped": flip_a_bit,
    "cut": cut,
    "emptied": empty,
    "appended to": append,
    "deleted": Path.unlink,
}


@pytest.fixture(scope="module")
def unfinished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The job of a run with two checkpoints that was killed after its last step and before its output."""
    root = tmp_path_factory.mktemp("tiny")
    rows = tiny_rows(root / "rows", repeated_words(), "prompt_completion")
    job = write_job(root / "job", "sft", SPEC, model=tiny_model(root / "model"), rows=rows)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer.Setup, "finish", lambda *_: None)
        sft.train(open_job(job))
    assert [path.name for path in complete_checkpoints(job)] == ["checkpoint-3", "checkpoint-4"]
    return job


@pytest.fixture
def job(unfinished: Path, tmp_path: Path) -> Job:
    """A copy of the unfinished job."""
    return open_job(Path(shutil.copytree(unfinished, tmp_path / "job")))


@pytest.fixture(scope="module")
def expected(unfinished: Path, tmp_path_factory: pytest.TempPathFactory) -> Job:
    """The job of the same run without an interruption."""
    job = open_job(Path(shutil.copytree(unfinished, tmp_path_factory.mktemp("whole") / "job")))
    shutil.rmtree(job.work / "checkpoints")
    sft.train(job)
    return job


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_whichever_file_is_damaged_the_checkpoint_before_is_used(
    job: Job, damage: Callable[[Path], None], tmp_path: Path
) -> None:
    newest = complete_checkpoints(job.directory)[-1]
    names = {path.name for path in newest.iterdir()} - {MANIFEST}
    assert {".metadata", "__0_0.distcp", "scheduler.pt", "rng_state.pth", "trainer_state.json"} <= names

    for name in names:
        folder = Path(shutil.copytree(newest.parent, tmp_path / name))
        damage(folder / newest.name / name)
        assert CheckpointFolder(folder, "checkpoint-").newest() == folder / "checkpoint-3", name
        assert (folder / f"damaged-{newest.name}").exists()


@pytest.mark.long
@pytest.mark.parametrize(
    ("damage", "name"),
    [
        ("a bit flipped", "__0_0.distcp"),
        ("a bit flipped", MANIFEST),
        ("emptied", ".metadata"),
        ("emptied", MANIFEST),
        ("cut", "trainer_state.json"),
        ("deleted", "rng_state.pth"),
        ("deleted", MANIFEST),
    ],
)
def test_the_run_then_makes_the_same_model_and_the_same_metrics(
    job: Job, expected: Job, damage: str, name: str
) -> None:
    DAMAGES[damage](complete_checkpoints(job.directory)[-1] / name)

    sft.train(job)

    assert read_manifest(job.output).digest == read_manifest(expected.output).digest
    assert without_times(job.directory) == without_times(expected.directory)
    assert not (job.work / "checkpoints").exists()


def test_a_pickle_that_was_swapped_is_not_loaded(job: Job, tmp_path: Path) -> None:
    harm = tmp_path / "harm"
    for checkpoint in complete_checkpoints(job.directory):
        for name in (".metadata", "__0_0.distcp", "scheduler.pt", "rng_state.pth"):
            (checkpoint / name).write_bytes(f"cos\nmkdir\n(S'{harm}'\ntR.".encode())

    with pytest.raises(ArtifactError, match="every checkpoint is damaged"):
        sft.train(job)
    assert not harm.exists() and not job.output.exists()


def test_metrics_that_a_power_cut_has_left_in_pieces_are_taken_anew(job: Job, expected: Job) -> None:
    flip_a_bit(complete_checkpoints(job.directory)[-1] / "__0_0.distcp")
    metrics = job.directory / "metrics.jsonl"
    *synced, last = metrics.read_bytes().splitlines(keepends=True)
    metrics.write_bytes(b"".join(synced) + last[:20] + b"\n" + b"\0" * 100 + b"\n\xff\xfe\n[]\n" + last[:30])

    sft.train(job)

    assert without_times(job.directory) == without_times(expected.directory)


def test_an_output_that_cannot_be_written_is_an_error_and_written_after_a_restart(job: Job, expected: Job) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    # acts like a full disk; the limit is below the size of the weights
    resource.setrlimit(resource.RLIMIT_FSIZE, (64 << 10, before[1]))
    try:
        with pytest.raises(StageError, match=r"output could not be written: .*File too large.*start again: the run"):
            sft.train(job)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert complete_checkpoints(job.directory) and not (job.directory / "result.json").exists()

    sft.train(job)

    assert read_manifest(job.output).digest == read_manifest(expected.output).digest
