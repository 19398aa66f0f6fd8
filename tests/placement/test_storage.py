"""A bucket between two machines with separate homes: fsspec's `file://`."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from flytekit import FlyteContextManager
from flytekit.core.type_engine import TypeEngine

from infra.paths import baton_home
from infra.placement.mirror import mirror
from infra.storage.buckets import address_of, storage_of
from infra.tracking.metrics import points_after
from infra.tracking.mlflow_records import stage_record
from infra.tracking.remote_run import add_placement
from infra.tracking.spool import Execution, read_stage
from tasks.artifacts import Tokenizer
from tasks.core.manifest import verify, write_manifest
from tasks.core.stored import send

JOB = """
from pathlib import Path
from infra.paths import baton_home
from infra.tracking.record import tracked
folder = baton_home() / "jobs" / "pretrain-0"
folder.mkdir(parents=True)
(folder / "metrics.jsonl").write_text('{"step": 1, "time": 1.0, "loss": 2.5}\\n')
with tracked("pretrain", folder, spec={}, inputs={}):
    pass
"""


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


def test_what_a_job_made_is_known_by_its_address_in_the_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATON_BUCKET", "s3://bucket/baton")
    assert address_of(f"{baton_home()}/jobs/pretrain-0/output") == "s3://bucket/baton/jobs/pretrain-0/output"


def test_a_shared_folder_needs_no_copies(tmp_path: Path) -> None:
    storage = storage_of(f"{tmp_path}/")
    artifact = made(tmp_path / "jobs/tokenizer-0/output")
    assert send(artifact.place, storage) == str(tmp_path / "jobs/tokenizer-0/output")


@pytest.fixture
def execution(bucket: str, tmp_path: Path) -> Path:
    """The execution here, after a job wrote into the bucket's part of it and it was mirrored."""
    environment = {"BATON_HOME": f"{tmp_path}/bucket", "BATON_EXECUTION": "e0", "BATON_PLACED": "baton-pretrain-0"}
    environment |= {"SKYPILOT_CLUSTER_INFO": '{"cloud": "AWS", "region": "us-east-1"}'}
    subprocess.run([sys.executable, "-c", JOB], env=os.environ | environment, check=True)
    mirror(bucket, tmp_path / "here/e0", "baton-pretrain-0")
    return tmp_path / "here/e0"


def test_a_job_s_record_and_metrics_come_home(execution: Path) -> None:
    run = read_stage(execution / "pretrain")
    assert run.placed == {"job": "baton-pretrain-0", "cloud": "AWS", "region": "us-east-1"}
    points, _ = points_after(Path(run.job_dir or "") / "metrics.jsonl", 0)
    assert [(point.name, point.value) for point in points] == [("loss", 2.5)]


def test_the_price_is_added_to_the_record(execution: Path) -> None:
    assert add_placement(execution, "baton-pretrain-0", {"job_id": 3, "price_per_hour": 24.1})
    assert not add_placement(execution, "baton-pretrain-0", {"job_id": 3, "price_per_hour": 24.1})
    assert not add_placement(execution, "baton-another-0", {"job_id": 4})
    tags = stage_record(
        Execution("e0", "tiny", {}, {}, "", 0.0), "pretrain", read_stage(execution / "pretrain"), "0"
    ).tags
    assert (tags["baton.placed.region"], tags["baton.placed.price_per_hour"]) == ("us-east-1", "24.1")
