"""infra/proxy/nginx.conf in Debian's nginx, in front of MLflow and the lineage pages in one process."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from tests.infra import proxied
from tests.infra.proxied import Proxied, passwords_and_certificate
from tests.serve.followed import awaited
from tests.source import ROOT
from tests.tracking.conftest import empty_store, free_port  # noqa: F401 - a fixture

NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(NGINX is None, reason="NOT RUN: needs nginx (apt-get install nginx-light)"),
]
START_S = 120


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, empty_store: Path) -> Iterator[Proxied]:  # noqa: F811
    folder = tmp_path_factory.mktemp("proxy")
    (folder / "baton").mkdir()
    shutil.copy(empty_store, folder / "baton/mlflow.db")
    passwords_and_certificate(folder)
    behind, port = free_port(), free_port()
    config = (ROOT / "infra/proxy/nginx.conf").read_text()
    for pattern, here in (
        ("http://(mlflow|lineage):5000", f"http://127.0.0.1:{behind}"),
        ("listen 8443", f"listen 127.0.0.1:{port}"),
        ("/etc/nginx/(tls|auth)|/tmp|/dev(?=/stdout)", str(folder)),
    ):
        config, replaced = re.subn(pattern, here, config)
        assert replaced
    (folder / "nginx.conf").write_text(config)
    environment = os.environ | {"BATON_HOME": str(folder / "baton"), "FORWARDED_ALLOW_IPS": "*"}
    environment.pop("MLFLOW_TRACKING_URI", None)
    words = {
        "pages": [sys.executable, "-m", "baton", "ui", "--port", str(behind)],
        "nginx": [str(NGINX), "-c", str(folder / "nginx.conf"), "-g", "daemon off; user root;"],
    }
    running = []
    try:
        for name, command in words.items():
            with (folder / f"{name}.log").open("wb") as log:
                running.append(subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log))
        found = Proxied(f"https://localhost:{port}", folder / "tls.crt")
        awaited(lambda: _answers(found), START_S, folder / "nginx.log")
        awaited(lambda: found.get("/health").ok, START_S, folder / "pages.log")
        yield found
    finally:
        for each in running:
            each.terminate()
            each.wait(30)


def _answers(served: Proxied) -> bool:
    try:
        return served.get("/healthz", auth=None).ok
    except requests.ConnectionError:
        return False


def test_nobody_passes_without_a_password(served: Proxied) -> None:
    proxied.nobody_passes_without_a_password(served)


def test_the_pages_and_mlflow_answer(served: Proxied) -> None:
    proxied.the_pages_and_mlflow_answer(served)


def test_mlflow_s_client_works(served: Proxied, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    proxied.mlflow_s_client_works(served, tmp_path, monkeypatch)


def test_only_its_own_pages_change_something(served: Proxied) -> None:
    proxied.only_its_own_pages_change_something(served)
