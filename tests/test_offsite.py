"""A job's folder in storage (S3): what a pod finds there of the pods before it."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from infra.home import baton_home
from infra.launch import Terminated
from infra.placement.storage import sizes
from tasks.artifacts import Tokenizer
from tasks.manifest import ArtifactError, remove, verify, write_manifest
from tasks.offsite import Offsite, offsite
from tests.s3 import S3, Faults, disturbed

FACTS = {"vocab_size": 3, "eos_id": 0, "pad_id": 0}

CHECKPOINTS = "work/checkpoints"  # in a job's folder


@pytest.fixture
def where(s3: S3, tmp_path: Path) -> Iterator[str]:
    with s3.flyte(tmp_path):
        yield f"{s3.address}/{uuid4().hex}"


@pytest.fixture(params=["bucket", "folder"])
def anywhere(request: pytest.FixtureRequest, where: str, tmp_path: Path) -> str:
    return where if request.param == "bucket" else str(tmp_path / "shared")


def pod(tmp_path: Path, name: str, where: str) -> Offsite:
    """The same job in a home of its own."""
    job_dir = tmp_path / name / "jobs/sft-0"
    job_dir.mkdir(parents=True)
    return Offsite(job_dir, where)


def checkpoint(job: Offsite, step: int, folder: str = "work/checkpoints") -> Path:
    path = job.here / folder / f"step-{step:08}"
    path.mkdir(parents=True)
    (path / "state").write_text(f"state after {step}")
    with (job.here / "metrics.jsonl").open("a") as log:
        log.write(json.dumps({"step": step}) + "\n")
    write_manifest(path, "training_state", {"step": step}, {}, {})
    return path


def send(job: Offsite) -> None:
    """An engine that fails has its last checkpoint sent."""
    with pytest.raises(RuntimeError), job.sending():
        raise RuntimeError


def in_storage(s3: S3, job: Offsite) -> list[str]:
    """The files in its `work`."""
    prefix = f"{job.there}/".removeprefix("s3://flyte/")
    return sorted(key.removeprefix(prefix) for key in s3.keys(f"{prefix}work/"))


def files(*steps: int) -> list[str]:
    return [f"work/checkpoints/step-{step:08}/{name}" for step in steps for name in ("manifest.json", "state")]


def test_outside_of_a_pod_folders_stay_where_they_are() -> None:
    assert offsite(baton_home() / "jobs/sft-0") is None


def test_in_a_pod_it_is_beside_the_raw_data(s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLYTE_INTERNAL_EXECUTION_ID", "e0")
    with s3.flyte(tmp_path):
        job = offsite(baton_home() / "jobs/sft-0")
    assert job and job.there == "s3://flyte/raw/baton/jobs/sft-0"


def test_a_home_that_is_the_storage_needs_no_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLYTE_INTERNAL_EXECUTION_ID", "e0")
    monkeypatch.setenv("BATON_STORAGE", str(baton_home()))
    assert offsite(baton_home() / "jobs/sft-0") is None


# What is done


def test_a_finished_job_is_found_by_another_pod(s3: S3, where: str, tmp_path: Path) -> None:
    first, second = pod(tmp_path, "first", where), pod(tmp_path, "second", where)
    checkpoint(first, 1)
    send(first)
    assert second.result() is None
    (first.here / "output").mkdir()
    (first.here / "output/vocabulary.txt").write_text("a b c")
    digest = write_manifest(first.here / "output", "tokenizer", FACTS, {}, {}).digest
    place = first.finish(digest)
    found = second.result()
    assert found and found[0] == place and found[1].digest == digest
    assert Tokenizer.from_place(place).digest == digest
    assert in_storage(s3, first) == []  # the checkpoints have done their work
    s3.delete(f"{place}/vocabulary.txt".removeprefix("s3://flyte/"))
    assert second.result() is None  # its files are gone: it is made again


# Checkpoints


def test_a_fresh_pod_has_the_newest_checkpoint_and_the_metrics(anywhere: str, tmp_path: Path) -> None:
    first, second = pod(tmp_path, "first", anywhere), pod(tmp_path, "second", anywhere)
    checkpoint(first, 5)
    checkpoint(first, 10)
    send(first)
    second.bring_back()
    (step,) = (second.here / "work/checkpoints").iterdir()
    assert verify(step).facts == {"step": 10}
    assert (second.here / "metrics.jsonl").read_text() == (first.here / "metrics.jsonl").read_text()


def test_a_newer_checkpoint_that_is_here_is_kept(where: str, tmp_path: Path) -> None:
    first, second = pod(tmp_path, "first", where), pod(tmp_path, "second", where)
    checkpoint(first, 5)
    send(first)
    checkpoint(second, 10)
    second.bring_back()
    assert [path.name for path in (second.here / "work/checkpoints").iterdir()] == ["step-00000010"]
    assert json.loads((second.here / "metrics.jsonl").read_text()) == {"step": 10}


def test_the_newest_two_are_kept(anywhere: str, tmp_path: Path) -> None:
    job = pod(tmp_path, "first", anywhere)
    for step in (5, 10, 15):
        checkpoint(job, step)
        send(job)
    assert sorted(name for name in sizes(job.there) if name.startswith("work/")) == files(10, 15)


def test_what_a_killed_pod_had_sent_of_one_is_removed_with_the_next(s3: S3, where: str, tmp_path: Path) -> None:
    job = pod(tmp_path, "first", where)
    s3.write(f"{job.there}/{CHECKPOINTS}/step-00000005/state".removeprefix("s3://flyte/"), b"half")
    job.bring_back()
    assert not (job.here / "work").exists()  # it is not believed
    checkpoint(job, 10)
    send(job)
    assert in_storage(s3, job) == files(10)


def damage(s3: S3, job: Offsite, step: int) -> None:
    key = f"{job.there}/{CHECKPOINTS}/step-{step:08}/state".removeprefix("s3://flyte/")
    s3.write(key, s3.read(key).replace(b"state", b"stats"))


def test_a_damaged_one_is_passed_over_for_the_one_before(
    s3: S3, where: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = pod(tmp_path, "first", where), pod(tmp_path, "second", where)
    for step in (5, 10):
        checkpoint(first, step)
        send(first)
    damage(s3, first, 10)
    second.bring_back()
    assert [path.name for path in (second.here / "work/checkpoints").iterdir()] == ["step-00000005"]
    assert "state was changed" in capsys.readouterr().err
    checkpoint(second, 10)
    send(second)
    remove(second.here / "work")
    second.bring_back()  # it was sent anew
    assert [path.name for path in (second.here / "work/checkpoints").iterdir()] == ["step-00000010"]


def test_a_run_does_not_start_anew_where_all_are_damaged(s3: S3, where: str, tmp_path: Path) -> None:
    first, second = pod(tmp_path, "first", where), pod(tmp_path, "second", where)
    checkpoint(first, 5)
    send(first)
    damage(s3, first, 5)
    for _attempt in range(2):
        with pytest.raises(ArtifactError, match="every checkpoint is damaged"):
            second.bring_back()


def test_what_has_no_number_is_kept_beside_the_checkpoints(where: str, tmp_path: Path) -> None:
    first, second = pod(tmp_path, "first", where), pod(tmp_path, "second", where)
    checkpoint(first, 5)
    (first.here / "work/pairs").mkdir()
    (first.here / "work/pairs/pairs.json").write_text("[]")
    write_manifest(first.here / "work/pairs", "pairs", {}, {}, {})
    send(first)
    second.bring_back()
    assert sorted(path.name for path in (second.here / "work").iterdir()) == ["checkpoints", "pairs"]


def test_the_engine_may_remove_one_while_it_is_sent(s3: S3, where: str, tmp_path: Path) -> None:
    job, fresh = pod(tmp_path, "first", where), pod(tmp_path, "second", where)
    with disturbed(s3, Faults(delay_s=0.05)) as slow, slow.flyte(tmp_path), pytest.raises(RuntimeError), job.sending():
        for step in range(30):
            made = checkpoint(job, step)
            time.sleep(0.05)
            if step < 29:
                remove(made)
        raise RuntimeError
    fresh.bring_back()
    (last,) = (fresh.here / "work/checkpoints").iterdir()
    assert verify(last).facts == {"step": 29}


def test_after_sigterm_it_waits_for_the_last_one_but_not_beyond_the_grace(
    s3: S3, where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BATON_STOP_GRACE_S", "4")
    job = pod(tmp_path, "first", where)
    began = time.monotonic()
    with disturbed(s3, Faults(delay_s=10)) as slow, slow.flyte(tmp_path), pytest.raises(Terminated), job.sending():
        checkpoint(job, 5)
        raise Terminated(15)
    assert time.monotonic() - began < 25  # to send it takes 50
