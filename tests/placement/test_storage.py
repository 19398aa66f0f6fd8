"""A bucket between two machines with separate homes, simulated with fsspec's `file://`."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from flytekit import FlyteContextManager
from flytekit.core.type_engine import TypeEngine

from baton.infra.paths import baton_home
from baton.infra.placement.mirror import Mirror
from baton.infra.storage.buckets import storage_of
from baton.infra.tracking.metrics import points_after
from baton.infra.tracking.mlflow_records import stage_record
from baton.infra.tracking.remote_run import add_placement, end_record, progress_of
from baton.infra.tracking.spool import Execution, StageRun, read_stage, write_stage
from baton.tasks.core.manifest import verify, write_manifest
from baton.tasks.core.stored import send
from baton.tasks.data.artifact import Tokenizer
from tests.s3 import S3

ROOT = Path(__file__).parents[2]
# A stage that trains until it is allowed to end.
JOB = """
import json, time
from pathlib import Path
from baton.infra.paths import baton_home
from baton.infra.placement import mirror
from baton.infra.tracking.record import tracked
mirror.EVERY_S = 0.2
folder = baton_home() / "jobs" / "pretrain-0"
folder.mkdir(parents=True)
with mirror.sending(), tracked("pretrain", folder, spec={}, inputs={}):
    (folder / "metrics.jsonl").write_text('{"step": 1, "time": 1.0, "loss": 2.5}\\n')
    (folder / "progress.json").write_text(json.dumps({"done": 1, "total": 4, "unit": "steps", "shown": {}}))
    (folder / "log.txt").write_text("step 1\\nHF_TOKEN=hf_" + "Z" * 30 + "\\n")
    while not (Path.cwd() / "end").exists():
        time.sleep(0.05)
    with (folder / "metrics.jsonl").open("a") as metrics:
        metrics.write('{"step": 2, "time": 2.0, "loss": 2.25}\\n')
"""
NAME = "baton-pretrain-0"
PLACE = {"cloud": "AWS", "region": "us-east-1", "zone": "use1-az1"}
FACTS = {"job_id": 3, "price_per_hour": 24.1, "recoveries": 1}


@pytest.fixture
def bucket(tmp_path: Path) -> str:
    return f"file://{tmp_path}/bucket"


def made(folder: Path) -> Tokenizer:
    folder.mkdir(parents=True)
    (folder / "vocabulary.txt").write_text("a b c")
    write_manifest(folder, "tokenizer", {"vocab_size": 3, "eos_id": 0, "pad_id": 0})
    return Tokenizer.from_directory(folder)


def test_an_artifact_goes_to_the_bucket_once(bucket: str, tmp_path: Path) -> None:
    artifact = made(tmp_path / "output")
    address = send(artifact.place, bucket)
    assert address == f"{bucket}/artifacts/{artifact.key}"
    verify(tmp_path / "bucket/artifacts" / artifact.key, artifact.digest)
    assert send(address, bucket) == address


def test_an_address_survives_flyte_s_types(tmp_path: Path) -> None:
    here = made(tmp_path / "output").at("s3://bucket/jobs/x/output")
    context = FlyteContextManager.current_context()
    literal = TypeEngine.to_literal(context, here, Tokenizer, TypeEngine.to_literal_type(Tokenizer))
    assert TypeEngine.to_python_value(context, literal, Tokenizer).place == "s3://bucket/jobs/x/output"


def test_it_comes_from_the_bucket_when_it_is_needed(bucket: str, tmp_path: Path) -> None:
    artifact = made(tmp_path / "bucket/jobs/tokenizer-0/output").at(f"{bucket}/jobs/tokenizer-0/output")
    here = artifact.local()
    assert here.is_relative_to(baton_home())
    verify(here, artifact.digest)
    assert artifact.local() == here


def test_a_shared_folder_needs_no_copies(tmp_path: Path) -> None:
    storage = storage_of(f"{tmp_path}/")
    artifact = made(tmp_path / "jobs/tokenizer-0/output")
    assert send(artifact.place, storage) == str(tmp_path / "jobs/tokenizer-0/output")


class Job:
    """A job on a machine that shares only the storage with this one."""

    def __init__(self, folder: Path, storage: str, environment: dict[str, str], program: str = JOB) -> None:
        folder.mkdir()
        self.folder = folder
        place = {"BATON_EXECUTION": "e0", "BATON_PLACED": NAME, "SKYPILOT_CLUSTER_INFO": json.dumps(PLACE)}
        home = {"BATON_HOME": str(folder / "home"), "BATON_STORAGE": storage, "NODE_RANK": "0"}
        self.process = subprocess.Popen(
            [sys.executable, "-c", program],
            cwd=folder,
            env=os.environ | {"PYTHONPATH": str(ROOT)} | place | home | environment,
        )

    def ends(self) -> int:
        (self.folder / "end").touch()
        return self.process.wait(120)


@pytest.fixture
def job(bucket: str, tmp_path: Path) -> Iterator[Job]:
    job = Job(tmp_path / "machine", bucket, {})
    try:
        yield job
    finally:
        job.process.kill()


@pytest.fixture
def here(bucket: str, tmp_path: Path) -> Mirror:
    return Mirror(bucket, tmp_path / "here/e0", NAME, FACTS)


def arrives(here: Mirror, step: int) -> StageRun:
    """Wait for the metrics of a step, and return the record."""
    deadline = time.monotonic() + 60
    while True:
        here.update()
        if (here.execution / "pretrain/run.json").exists():
            run = read_stage(here.execution / "pretrain")
            points, _ = points_after(Path(run.job_dir or "") / "metrics.jsonl", 0)
            if [point.value for point in points] == [2.5, 2.25][:step]:
                return run
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_what_a_job_does_is_seen_while_it_trains(job: Job, here: Mirror) -> None:
    run = arrives(here, 1)
    assert (run.status, run.placed) == ("RUNNING", {"job": NAME, **PLACE, **FACTS})
    folder = Path(run.job_dir or "")
    assert folder.is_relative_to(baton_home())
    assert progress_of(here.execution, NAME) == folder / "progress.json"
    assert (folder / "log.txt").read_text().startswith("step 1\n")


def test_its_record_is_complete_once_it_has_ended(job: Job, here: Mirror) -> None:
    arrives(here, 1)
    assert job.ends() == 0
    run = arrives(here, 2)
    assert (run.status, run.placed["price_per_hour"], run.placed["recoveries"]) == ("FINISHED", 24.1, 1)


def test_a_secret_in_its_log_is_not_sent(job: Job, here: Mirror, tmp_path: Path) -> None:
    arrives(here, 1)
    job.ends()
    there = b"".join(path.read_bytes() for path in (tmp_path / "bucket").rglob("*") if path.is_file())
    assert b"HF_TOKEN" in there
    assert b"ZZZZ" not in there


def test_it_arrives_through_s3(s3: S3, tmp_path: Path) -> None:
    job = Job(tmp_path / "machine", f"{s3.address}/{tmp_path.name}", s3.environment())
    with s3.flyte(tmp_path):
        here = Mirror(f"{s3.address}/{tmp_path.name}", tmp_path / "here/e0", NAME, FACTS)
        arrives(here, 1)
        assert job.ends() == 0
        assert arrives(here, 2).status == "FINISHED"


def test_storage_that_is_away_stops_no_stage(tmp_path: Path) -> None:
    away = {"FLYTE_AWS_ENDPOINT": "http://127.0.0.1:9", "FLYTE_AWS_ACCESS_KEY_ID": "a"}
    program = (
        f"from baton.infra.placement import mirror; from baton.infra.storage import buckets; mirror.LAST_S = 1\n{JOB}"
    )
    job = Job(tmp_path / "machine", "s3://bucket/x", away | {"FLYTE_AWS_SECRET_ACCESS_KEY": "b"}, program)
    assert job.ends() == 0


@pytest.mark.long
def test_storage_that_is_away_ends_no_run_here(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with S3("http://127.0.0.1:9").flyte(tmp_path):
        here = Mirror("s3://bucket/x", tmp_path / "here/e0", NAME, FACTS)
        here.update()
        here.update()
    assert capsys.readouterr().err.count("the job continues, and this retries") == 1


def test_a_stage_whose_machine_was_lost_after_it_had_finished_is_not_cached(
    job: Job, here: Mirror, bucket: str, tmp_path: Path
) -> None:
    """The next machine finds the artifact of the previous one."""
    arrives(here, 1)
    job.process.kill()
    found = replace(read_stage(here.execution / "pretrain"), job_dir=None, cached=True, output={"digest": "d"})
    found = replace(found, status="FINISHED", ended=9.0)
    write_stage(tmp_path / f"bucket/executions/e0/{NAME}/pretrain", found)
    here.update()
    run = read_stage(here.execution / "pretrain")
    assert (run.status, run.cached, run.output, run.placed["job"]) == ("FINISHED", False, {"digest": "d"}, NAME)
    assert run.job_dir


def test_the_price_is_added_to_the_record(job: Job, here: Mirror) -> None:
    arrives(here, 1)
    job.ends()
    arrives(here, 2)
    ended = FACTS | {"cost": 0.5}
    assert add_placement(here.execution, NAME, ended)
    assert not add_placement(here.execution, NAME, ended)
    assert not add_placement(here.execution, "baton-another-0", {"job_id": 4})
    tags = stage_record(
        Execution("e0", "tiny", {}, {}, "", 0.0), "pretrain", read_stage(here.execution / "pretrain"), "0"
    ).tags
    assert (tags["baton.placed.region"], tags["baton.placed.cost"]) == ("us-east-1", "0.5")


def test_a_stage_whose_job_has_failed_does_not_stay_running(job: Job, here: Mirror) -> None:
    arrives(here, 1)
    job.process.kill()
    end_record(here.execution, NAME, "job 3 failed: no place has capacity", "FAILED")
    run = read_stage(here.execution / "pretrain")
    assert (run.status, run.error) == ("FAILED", "job 3 failed: no place has capacity")
    assert run.ended


def test_an_artifact_that_was_there_already_is_cached_and_has_its_place(
    bucket: str, tmp_path: Path, here: Mirror
) -> None:
    """A machine was rented only to find the artifact."""
    found = JOB.partition("folder = ")[0] + "\n".join(
        (
            "from baton.infra.tracking.record import note_cached",
            "with mirror.sending():",
            "    note_cached('pretrain', 'checkpoint', 'd', {})",
        )
    )
    assert Job(tmp_path / "machine", bucket, {}, found).ends() == 0
    here.update()
    run = read_stage(here.execution / "pretrain")
    assert (run.cached, run.placed["job"], run.placed["price_per_hour"]) == (True, NAME, 24.1)
