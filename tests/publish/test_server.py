"""Publishing to an `mlflow server`, which accepts no paths of another machine."""

import subprocess
import sys
import time
from pathlib import Path

import pytest
from mlflow.store.artifact.mlflow_artifacts_repo import MlflowArtifactsRepository

from baton.infra.tracking.store import prepare_client
from baton.tasks.core.job import StageError
from baton.tasks.core.manifest import ArtifactError, read_manifest, verify
from baton.tasks.publish.aliases import CHAMPION, version_at, versions
from baton.tasks.publish.champion import promote
from baton.tasks.serve.fetched import fetch, remove_fetched
from tests.publish.conftest import Chain
from tests.publish.test_champion import NAME, make
from tests.tracking.conftest import Server

pytestmark = pytest.mark.long

SPEC = {"name": "baton.test", "alias": "champion"}


def test_a_server_gets_the_files_once_it_answers(sleeping_server: Server, tmp_path: Path, sealed: Chain) -> None:
    server = sleeping_server
    job = sealed.job(tmp_path / "job", SPEC, "model", "eval_grpo")
    engine = subprocess.Popen(
        [sys.executable, "-m", "baton.tasks.publish.publish", str(job)], stderr=subprocess.PIPE, text=True
    )
    while "waiting" not in ((job / "progress.json").read_text() if (job / "progress.json").exists() else ""):
        assert engine.poll() is None, engine.communicate()[1]
        time.sleep(0.1)
    server.start()
    assert engine.wait(timeout=120) == 0, engine.communicate()[1]

    from mlflow.artifacts import download_artifacts

    got = Path(
        download_artifacts("models:/baton.test@champion", dst_path=str(tmp_path / "got"), tracking_uri=server.uri)
    )
    for name in read_manifest(job / "output").files:
        assert (got / name).read_bytes() == (job / "output" / name).read_bytes()


def test_a_server_s_champion_moves_once_and_its_files_come_once(
    server: Server, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    make(tmp_path, 3)
    promote(NAME, 1, None)
    command = [sys.executable, "-m", "tests.publish.moving", NAME]
    movers = [subprocess.Popen([*command, version, "1"], stderr=subprocess.PIPE, text=True) for version in "23"]
    errors = [mover.communicate()[1] for mover in movers]
    assert sorted("ChampionChanged" in error for error in errors) == [False, True]

    champion = version_at(NAME, CHAMPION)
    assert champion and champion.version in (2, 3)
    capfd.readouterr()
    got = fetch(champion)
    assert "Downloading" not in capfd.readouterr().err  # the champion's log would have a line for each file
    assert verify(got).digest == champion.content
    assert (got / "model.safetensors").read_text() == f"{NAME} {champion.version}"
    server.kill()
    assert fetch(champion) == got  # works without the server
    with pytest.raises(StageError, match=r"the model registry http\S+ does not answer \(.+\)\.$"):
        version_at(NAME, CHAMPION, patience_s=0)
    server.start()
    for model in server.store.parent.rglob("model.safetensors"):
        model.write_text("changed on the server")
    (other,) = [each for each in versions(NAME) if each.version == 1]
    with pytest.raises(ArtifactError, match="they were changed on the server"):
        fetch(other)
    assert not list((got.parent).glob("*.partial"))


def test_publishing_again_brings_back_files_that_the_server_lost(server: Server, tmp_path: Path) -> None:
    make(tmp_path / "first", 1)
    (version,) = versions(NAME)
    for loss in ("gone", "cut"):
        for file in server.store.parent.rglob("artifacts/model.safetensors"):
            file.unlink() if loss == "gone" else file.write_text("cut")
        with pytest.raises(ArtifactError, match=r"(gone from|changed on) the server"):
            fetch(version)
        make(tmp_path / loss, 1)
        assert versions(NAME) == [version]
        assert (fetch(version) / "model.safetensors").read_text() == f"{NAME} 1"
        remove_fetched(NAME, but=set())
    for file in server.store.parent.rglob("artifacts/model.safetensors"):
        file.write_text("X" * file.stat().st_size)  # the fix that the message suggests
    make(tmp_path / "again", 1, "another", of=NAME)
    (other,) = versions("another")
    assert (fetch(other) / "model.safetensors").read_text() == f"{NAME} 1"


def test_files_pass_through_the_server_and_not_by_an_address_of_its_store() -> None:
    """With an S3 store, MLflow's server offers addresses that a client elsewhere cannot resolve."""
    prepare_client()
    repository = MlflowArtifactsRepository("mlflow-artifacts:/1", tracking_uri="http://127.0.0.1:1")
    repository._server_capabilities = {"multipart_downloads_enabled": True, "multipart_uploads_enabled": True}
    assert not repository._is_multipart_download_enabled() and not repository._is_multipart_upload_enabled()
