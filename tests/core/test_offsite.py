"""The folder of a job in storage (S3), where a pod finds the files of the pods before it."""

import contextvars
import json
import shutil
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

import baton.tasks.core.offsite
import baton.tasks.core.stored
from baton.infra.paths import baton_home
from baton.infra.process.launch import Terminated
from baton.infra.storage import buckets as storage
from baton.infra.storage.buckets import sizes
from baton.infra.storage.durable import remove
from baton.tasks.core.manifest import ArtifactError, verify, write_manifest
from baton.tasks.core.offsite import Offsite, offsite
from baton.tasks.data.artifact import Tokenizer
from tests.s3 import S3, Faults, disturbed

FACTS = {"vocab_size": 3, "eos_id": 0, "pad_id": 0}

CHECKPOINTS = "work/checkpoints"  # path in a job's folder


@pytest.fixture
def where(s3: S3, tmp_path: Path) -> Iterator[str]:
    with s3.flyte(tmp_path):
        yield f"{s3.address}/{uuid4().hex}"


@pytest.fixture(params=["bucket", "folder"])
def anywhere(request: pytest.FixtureRequest, where: str, tmp_path: Path) -> str:
    return where if request.param == "bucket" else str(tmp_path / "shared")


def pod(tmp_path: Path, name: str, where: str) -> Offsite:
    """Create the same job in a separate home."""
    job_dir = tmp_path / name / "jobs/sft-0"
    job_dir.mkdir(parents=True)
    return Offsite(job_dir, where)


def checkpoint(job: Offsite, step: int, folder: str = "work/checkpoints") -> Path:
    path = job.job_dir / folder / f"step-{step:08}"
    path.mkdir(parents=True)
    (path / "state").write_text(f"state after {step}")
    with (job.job_dir / "metrics.jsonl").open("a") as log:
        log.write(json.dumps({"step": step}) + "\n")
    write_manifest(path, "training_state", {"step": step})
    return path


def send(job: Offsite) -> None:
    """Send the last checkpoint, which happens when an engine fails."""
    with pytest.raises(RuntimeError), job.sending():
        raise RuntimeError


def in_storage(s3: S3, job: Offsite) -> list[str]:
    """Return the stored files of a job's `work` folder."""
    prefix = f"{job.address}/".removeprefix("s3://flyte/")
    return parts(key.removeprefix(prefix) for key in s3.keys(f"{prefix}work/"))


def parts(names: Iterable[str]) -> list[str]:
    """Return the checkpoints and names of the files in `work`."""
    return sorted(f"{name.split('/')[2]}/{name.split('/')[-1]}" for name in names if name.startswith("work/"))


def files(*steps: int) -> list[str]:
    return [f"step-{step:08}/{name}" for step in steps for name in ("manifest.json", "metrics.jsonl", "state")]


def test_outside_of_a_pod_folders_stay_where_they_are() -> None:
    assert offsite(baton_home() / "jobs/sft-0") is None


def test_in_a_pod_it_is_beside_the_raw_data(s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLYTE_INTERNAL_EXECUTION_ID", "e0")
    with s3.flyte(tmp_path):
        job = offsite(baton_home() / "jobs/sft-0")
    assert job and job.address == "s3://flyte/raw/baton/jobs/sft-0"


def test_a_home_that_is_the_storage_needs_no_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLYTE_INTERNAL_EXECUTION_ID", "e0")
    monkeypatch.setenv("BATON_STORAGE", str(baton_home()))
    assert offsite(baton_home() / "jobs/sft-0") is None


# Finished jobs


def test_a_finished_job_is_found_by_another_pod(s3: S3, where: str, tmp_path: Path) -> None:
    first, second = pod(tmp_path, "first", where), pod(tmp_path, "second", where)
    checkpoint(first, 1)
    send(first)
    assert second.result() is None
    digest = artifact(first)
    place = first.finish(digest)
    found = second.result()
    assert found and found[0] == place and found[1].digest == digest
    assert Tokenizer.from_place(place).digest == digest
    assert in_storage(s3, first) == []  # the checkpoints are no longer needed
    s3.delete(f"{place}/vocabulary.txt".removeprefix("s3://flyte/"))
    assert second.result() is None  # its files are gone, so it must be recomputed


# Checkpoints


def test_a_fresh_pod_has_the_newest_checkpoint_and_the_metrics(anywhere: str, tmp_path: Path) -> None:
    first, second = pod(tmp_path, "first", anywhere), pod(tmp_path, "second", anywhere)
    checkpoint(first, 5)
    checkpoint(first, 10)
    send(first)
    second.resume()
    (step,) = (second.job_dir / "work/checkpoints").iterdir()
    assert verify(step).facts == {"step": 10}
    assert (second.job_dir / "metrics.jsonl").read_text() == (first.job_dir / "metrics.jsonl").read_text()


def test_a_newer_checkpoint_that_is_here_is_kept(where: str, tmp_path: Path) -> None:
    first, second = pod(tmp_path, "first", where), pod(tmp_path, "second", where)
    checkpoint(first, 5)
    send(first)
    checkpoint(second, 10)
    second.resume()
    assert [path.name for path in (second.job_dir / "work/checkpoints").iterdir()] == ["step-00000010"]
    assert json.loads((second.job_dir / "metrics.jsonl").read_text()) == {"step": 10}


def test_the_newest_two_are_kept(anywhere: str, tmp_path: Path) -> None:
    job = pod(tmp_path, "first", anywhere)
    for step in (5, 10, 15):
        checkpoint(job, step)
        send(job)
    assert parts(sizes(job.address)) == files(10, 15)


def test_what_a_killed_pod_had_sent_of_one_is_removed_with_the_next(s3: S3, where: str, tmp_path: Path) -> None:
    job = pod(tmp_path, "first", where)
    s3.write(f"{job.address}/{CHECKPOINTS}/step-00000005/0a/state".removeprefix("s3://flyte/"), b"half")
    job.resume()
    assert not (job.job_dir / "work").exists()  # an invalid checkpoint is not used
    checkpoint(job, 10)
    send(job)
    assert in_storage(s3, job) == files(10)


def damage(s3: S3, job: Offsite, step: int) -> None:
    (key,) = [
        key for key in s3.keys(job.address.removeprefix("s3://flyte/")) if f"/step-{step:08}/" in key and "state" in key
    ]
    s3.write(key, s3.read(key).replace(b"state", b"stats"))


def test_a_damaged_one_is_passed_over_for_the_one_before(
    s3: S3, where: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = pod(tmp_path, "first", where), pod(tmp_path, "second", where)
    for step in (5, 10):
        checkpoint(first, step)
        send(first)
    damage(s3, first, 10)
    second.resume()
    assert [path.name for path in (second.job_dir / "work/checkpoints").iterdir()] == ["step-00000005"]
    assert "state was changed" in capsys.readouterr().err
    checkpoint(second, 10)
    send(second)
    remove(second.job_dir / "work")
    second.resume()  # it was sent again
    assert [path.name for path in (second.job_dir / "work/checkpoints").iterdir()] == ["step-00000010"]


def test_a_run_does_not_start_anew_where_all_are_damaged(s3: S3, where: str, tmp_path: Path) -> None:
    first, second = pod(tmp_path, "first", where), pod(tmp_path, "second", where)
    checkpoint(first, 5)
    send(first)
    damage(s3, first, 5)
    for _attempt in range(2):
        with pytest.raises(ArtifactError, match="every checkpoint is damaged"):
            second.resume()


def test_what_has_no_number_is_kept_beside_the_checkpoints(where: str, tmp_path: Path) -> None:
    first, second = pod(tmp_path, "first", where), pod(tmp_path, "second", where)
    checkpoint(first, 5)
    (first.job_dir / "work/pairs").mkdir()
    (first.job_dir / "work/pairs/pairs.json").write_text("[]")
    write_manifest(first.job_dir / "work/pairs", "pairs", {})
    send(first)
    second.resume()
    assert sorted(path.name for path in (second.job_dir / "work").iterdir()) == ["checkpoints", "pairs"]


def test_the_engine_may_remove_one_while_it_is_sent(s3: S3, where: str, tmp_path: Path) -> None:
    job, fresh = pod(tmp_path, "first", where), pod(tmp_path, "second", where)
    with disturbed(s3, Faults(delay_s=0.05)) as slow, slow.flyte(tmp_path), pytest.raises(RuntimeError), job.sending():
        for step in range(30):
            made = checkpoint(job, step)
            time.sleep(0.05)
            if step < 29:
                remove(made)
        raise RuntimeError
    fresh.resume()
    (last,) = (fresh.job_dir / "work/checkpoints").iterdir()
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
    assert time.monotonic() - began < 25  # sending all of it would take 50


# Two pods with the same job: Flyte has abandoned one of them, which still runs beside its retry


def other_checkpoint(job: Offsite, step: int) -> Path:
    """Write a `checkpoint` with other bytes: the order or time of its files may differ between pods."""
    path = checkpoint(job, step)
    remove(path)
    path.mkdir()
    (path / "state").write_text(f"STATE after {step}")
    write_manifest(path, "training_state", {"step": step})
    return path


def test_two_pods_that_send_the_same_step_leave_it_whole(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost, retry, next_one = (pod(tmp_path, name, where) for name in ("lost", "retry", "next"))
    checkpoint(lost, 5)
    other_checkpoint(retry, 5)
    write = storage.write

    def meanwhile(*words: Any) -> None:
        """Let the retry send all of its files before the other pod sends its manifest."""
        monkeypatch.undo()
        send(retry)
        write(*words)

    monkeypatch.setattr(storage, "write", meanwhile)
    send(lost)
    assert next_one.resume() is None
    (step,) = (next_one.job_dir / CHECKPOINTS).iterdir()
    assert verify(step).facts == {"step": 5}


def test_the_metrics_that_come_back_are_those_of_the_checkpoint(where: str, tmp_path: Path) -> None:
    lost, retry, next_one = (pod(tmp_path, name, where) for name in ("lost", "retry", "next"))
    for step in (5, 10):
        checkpoint(lost, step)
    send(lost)
    other_checkpoint(retry, 5)
    send(retry)  # the retry is behind, and the last to send
    next_one.resume()
    assert [path.name for path in (next_one.job_dir / CHECKPOINTS).iterdir()] == ["step-00000010"]
    assert [json.loads(line)["step"] for line in (next_one.job_dir / "metrics.jsonl").read_text().splitlines()] == [
        5,
        10,
    ]


def artifact(job: Offsite) -> str:
    (job.job_dir / "output").mkdir()
    (job.job_dir / "output/vocabulary.txt").write_text("a b c")
    (job.job_dir / "output/record").mkdir()
    shutil.copy(job.job_dir / "metrics.jsonl", job.job_dir / "output/record")
    return write_manifest(job.job_dir / "output", "tokenizer", FACTS).digest


def test_a_pod_whose_checkpoints_another_removes_goes_on_sending(
    s3: S3, where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other pod has finished."""
    lost, retry = pod(tmp_path, "lost", where), pod(tmp_path, "retry", where)
    checkpoint(lost, 5)
    checkpoint(retry, 5)
    digest, prune = artifact(retry), Offsite._prune

    def meanwhile(job: Offsite, series: str) -> None:
        monkeypatch.undo()
        retry.finish(digest)
        prune(job, series)

    monkeypatch.setattr(Offsite, "_prune", meanwhile)
    with pytest.raises(RuntimeError), lost.sending():
        while "result.json" not in sizes(lost.address):
            time.sleep(0.05)
        checkpoint(lost, 10)
        raise RuntimeError
    assert in_storage(s3, lost) == files(10)


def test_two_pods_that_finish_at_the_same_time_have_one_result(s3: S3, where: str, tmp_path: Path) -> None:
    jobs = [pod(tmp_path, name, where) for name in ("lost", "retry")]
    for number, job in enumerate(jobs):
        checkpoint(job, 5)
        (job.job_dir / "metrics.jsonl").write_text("{}\n" * (1 + number))  # each has another length
    digests = {artifact(job) for job in jobs}
    with disturbed(s3, Faults(delay_s=0.05)) as slow, slow.flyte(tmp_path), ThreadPoolExecutor(2) as threads:
        finished = [
            threads.submit(contextvars.copy_context().run, job.finish, digest)
            for job, digest in zip(jobs, 2 * [*digests], strict=True)
        ]
        (place,) = {each.result() for each in finished}
    found = pod(tmp_path, "next", where).resume()
    assert found and found[0] == place and {found[1].digest} == digests
    assert Tokenizer.from_place(place).local()


@pytest.mark.parametrize("finished", [True, False])
def test_what_another_pod_removes_meanwhile_is_not_taken_for_damaged(
    s3: S3, where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, finished: bool
) -> None:
    """A pod starts while the one that Flyte has abandoned finishes, or sends its next checkpoints."""
    lost, retry = pod(tmp_path, "lost", where), pod(tmp_path, "retry", where)
    checkpoint(lost, 5)
    send(lost)
    digest = artifact(lost)
    download = baton.tasks.core.stored.download

    def meanwhile(*words: Any) -> None:
        monkeypatch.undo()
        if finished:
            lost.finish(digest)
        else:
            for step in (10, 15):
                checkpoint(lost, step)
                send(lost)
        download(*words)

    monkeypatch.setattr(baton.tasks.core.offsite, "download", meanwhile)
    found = retry.resume()
    if finished:
        assert found and found[1].digest == digest
    else:
        assert [path.name for path in (retry.job_dir / CHECKPOINTS).iterdir()] == ["step-00000015"]
