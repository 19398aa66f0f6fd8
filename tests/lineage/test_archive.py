"""An artifact's folder as one download."""

import io
import os
import resource
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from baton.infra.lineage.app import alone
from baton.infra.lineage.archive import Archive, Damaged, archive, safe
from baton.infra.tracking.execution import begin_execution, end_execution, flush
from baton.infra.tracking.record import note_cached
from baton.tasks.core.manifest import content_digest, read_manifest, write_manifest
from baton.tasks.core.stored import send
from tests.lineage.recorded import HOSTILE, PATHS
from tests.s3 import S3

LONG = "a-folder-with-a-long-name/" * 5 + "file.txt"


@pytest.fixture
def job(home: Path) -> Path:
    """A job whose output has files of several sizes."""
    output = home / "jobs" / "one" / "output"
    for name, size in {"config.json": 2, "empty": 0, "model.safetensors": 1_500_000, "ünï/x": 512, LONG: 513}.items():
        (output / name).parent.mkdir(parents=True, exist_ok=True)
        (output / name).write_bytes(os.urandom(size))
    (output / "record").mkdir()
    (output / "record" / "notes").write_text("not part of the result")
    write_manifest(output, "hf_model", {"label": "sft"})
    return output.parent


def packed(job: Path, title: str = "sft") -> Archive:
    made = archive(title, read_manifest(job / "output").digest, str(job))
    assert made
    return made


def test_the_folder_is_a_tar_file_of_the_size_that_is_announced(job: Path, tmp_path: Path) -> None:
    made = packed(job)
    content = b"".join(made.chunks())
    assert len(content) == made.size
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        tar.extractall(tmp_path, filter="data")
    manifest = read_manifest(job / "output")
    folder = tmp_path / f"sft-{manifest.digest[:12]}"
    assert content_digest(folder) == manifest.digest
    assert {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()} == {*manifest.files}
    unpacked = subprocess.run(["tar", "-tf", "-"], input=content, capture_output=True, check=True)
    assert len(unpacked.stdout.splitlines()) == len(manifest.files)


def test_a_file_that_changes_meanwhile_ends_the_download(job: Path) -> None:
    chunks = packed(job).chunks()
    next(chunks)
    path = job / "output" / "model.safetensors"
    path.write_bytes(bytes(path.stat().st_size))
    with pytest.raises(Damaged):
        list(chunks)


@pytest.mark.parametrize("name", ["../outside", "/etc/passwd", "a/../../outside"])
def test_a_file_outside_of_the_folder_is_never_packed(job: Path, name: str) -> None:
    manifest = job / "output" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"config.json"', f'"{name}"'))
    (job / "outside").write_text("secret")
    assert archive("sft", read_manifest(job / "output").digest, str(job)) is None


@pytest.mark.parametrize("title", ["", HOSTILE, PATHS, "a\r\nSet-Cookie: b", "模型", "-rf", '"; filename="x'])
def test_the_file_name_is_safe_anywhere(title: str) -> None:
    name = safe(title)
    assert name.isascii() and name.replace("-", "").replace("_", "").replace(".", "").isalnum()
    assert not name.startswith(("-", ".")) and len(name) <= 80


def test_a_large_folder_needs_no_memory(job: Path) -> None:
    with (job / "output" / "large.bin").open("wb") as stream:
        stream.truncate(300 << 20)
    write_manifest(job / "output", "hf_model", {"label": "sft"})
    made = packed(job)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert sum(map(len, made.chunks())) == made.size > 300 << 20
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 40 << 10  # KiB


def recorded(job: Path) -> str:
    """Record the job's artifact, as a stage does; returns its digest."""
    digest = read_manifest(job / "output").digest
    begin_execution("one", {"name": "one"})
    note_cached("sft", "hf_model", digest, {"label": HOSTILE}, inputs={}, job_dir=job, shown={"family": "model"})
    end_execution()
    flush()
    return digest


def test_the_page_of_an_artifact_has_its_folder_as_one_download(job: Path) -> None:
    digest = recorded(job)
    page = TestClient(alone())
    address = f"/lineage/artifacts/{digest}/folder.tar"
    assert f'href="{address}" download' in page.get(f"/lineage/artifacts/{digest}").text
    head, got = page.head(address), page.get(address)
    assert head.status_code == got.status_code == 200 and head.content == b""
    for name in ("Content-Length", "Content-Disposition", "Content-Type"):
        assert head.headers[name] == got.headers[name]
    assert len(got.content) == int(got.headers["Content-Length"])
    shown = got.headers["Content-Disposition"]
    assert shown.startswith('attachment; filename="script-alert-1') and "<" not in shown
    with tarfile.open(fileobj=io.BytesIO(got.content)) as tar:
        assert len(tar.getnames()) == 5


def test_the_files_of_a_pod_come_from_its_bucket(
    job: Path, s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = f"{s3.address}/of-a-pod"
    with s3.flyte(tmp_path):
        send(str(job / "output"), root)
    digest = recorded(job)
    (job / "output").rename(tmp_path / "elsewhere")
    page = TestClient(alone())
    assert "Download the folder" not in page.get(f"/lineage/artifacts/{digest}").text
    assert page.get(f"/lineage/artifacts/{digest}/folder.tar").status_code == 404

    monkeypatch.setenv("BATON_STORAGE", root)
    for name, value in s3.environment().items():
        monkeypatch.setenv(name, value)
    code = (
        "import sys\nfrom starlette.testclient import TestClient\nfrom baton.infra.lineage.app import alone\n"
        f"answer = TestClient(alone()).get('/lineage/artifacts/{digest}/folder.tar')\n"
        "assert answer.status_code == 200, answer.text\nsys.stdout.buffer.write(answer.content)"
    )
    got = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert got.returncode == 0, got.stderr.decode()
    assert "Download the folder" in page.get(f"/lineage/artifacts/{digest}").text
    with tarfile.open(fileobj=io.BytesIO(got.stdout)) as tar:
        tar.extractall(tmp_path / "unpacked", filter="data")
    (folder,) = (tmp_path / "unpacked").iterdir()
    assert content_digest(folder) == digest
