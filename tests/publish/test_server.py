"""Publishing to an `mlflow server`, which takes no paths of another machine."""

import subprocess
import sys
import time
from pathlib import Path

from tasks.manifest import read_manifest
from tests.publish.conftest import Chain
from tests.tracking.conftest import Server

SPEC = {"name": "baton.test", "alias": "champion"}


def test_a_server_gets_the_files_once_it_answers(sleeping_server: Server, tmp_path: Path, sealed: Chain) -> None:
    server = sleeping_server
    job = sealed.job(tmp_path / "job", SPEC, "model", "eval_grpo")
    engine = subprocess.Popen(
        [sys.executable, "-m", "tasks.publish.publish", str(job)], stderr=subprocess.PIPE, text=True
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
