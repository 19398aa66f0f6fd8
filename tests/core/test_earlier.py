"""Results of an earlier version, whose keys had no facts, are found if their inputs had the present facts."""

import json
import shutil
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from baton.tasks.core.earlier import has_result_of
from baton.tasks.core.manifest import MANIFEST, Manifest, read_manifest, write_manifest
from baton.tasks.core.stored import send
from tests.s3 import S3

FACTS = {"license": "mit"}


def sealed(folder: Path, facts: dict[str, Any], display: dict[str, Any] | None = None) -> Path:
    folder.mkdir(parents=True)
    (folder / "weights").write_text("1")
    write_manifest(folder, "toy", facts, display=display)
    return folder


def as_before(folder: Path) -> Path:
    """Return an artifact as the earlier version sealed it."""
    manifest = json.loads((folder / MANIFEST).read_text())
    manifest["facts"] |= manifest.pop("display")
    del manifest["identity"]
    (folder / MANIFEST).write_text(json.dumps(manifest))
    return folder


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """Create a finished job of the earlier version with one input."""
    given = as_before(sealed(tmp_path / "before", FACTS, {"layout": 1}))
    folder = tmp_path / "jobs" / "sft-0"
    made = sealed(folder / "output", {})
    entry = {"path": str(given), "digest": read_manifest(given).digest, "place": str(given), "files": ["*"]}
    (folder / "spec.json").write_text(json.dumps({"inputs": {"model": entry}}))
    (folder / "result.json").write_text(json.dumps({"digest": read_manifest(made).digest}))
    return folder


def found(job: Path, given: Manifest) -> bool:
    return has_result_of(job, {"model": given.digest}, lambda _: given)


def test_it_is_found_for_an_input_with_the_same_facts(job: Path, tmp_path: Path) -> None:
    assert found(job, read_manifest(sealed(tmp_path / "now", FACTS, {"layout": 1})))


def test_it_is_not_found_for_an_input_with_other_facts(job: Path, tmp_path: Path) -> None:
    assert not found(job, read_manifest(sealed(tmp_path / "now", {"license": "cc-by-nc-4.0"}, {"layout": 1})))


def test_it_is_not_found_if_the_facts_of_its_input_are_not_known(job: Path, tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "before")
    assert not found(job, read_manifest(sealed(tmp_path / "now", FACTS, {"layout": 1})))


def test_an_unfinished_job_is_no_result(job: Path, tmp_path: Path) -> None:
    (job / "result.json").unlink()
    assert not found(job, read_manifest(sealed(tmp_path / "now", FACTS, {"layout": 1})))


@pytest.mark.parametrize("license", ["mit", "cc-by-nc-4.0"])
def test_a_pod_looks_in_storage(
    s3: S3, job: Path, tmp_path: Path, license: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with s3.flyte(tmp_path):
        storage = f"{s3.address}/{uuid4().hex}"
        monkeypatch.setenv("FLYTE_INTERNAL_EXECUTION_ID", "x")
        monkeypatch.setenv("BATON_STORAGE", storage)
        send(str(tmp_path / "before"), storage)
        place, digest = send(str(job / "output"), storage), read_manifest(job / "output").digest
        s3.write(
            f"{storage}/jobs/sft-0/result.json".removeprefix("s3://flyte/"),
            json.dumps({"digest": digest, "place": place}).encode(),
        )
        now = read_manifest(sealed(tmp_path / "now", {"license": license}, {"layout": 1}))
        assert found(job, now) == (license == "mit")
