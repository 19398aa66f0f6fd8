"""infra/compose.yaml, started and used: `make test-images`. Its own images are built as the file says; packages of
Debian replace the public images."""

import json
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlflow
import openai
import pytest
import requests
import yaml

from baton.tasks.publish.champion import promote
from tests.images.base import python_3_12
from tests.images.docker import Docker, needs_docker
from tests.images.stand_ins import PLACES, stand_ins
from tests.infra import proxied
from tests.infra.proxied import Proxied, passwords_and_certificate
from tests.serve.followed import NAME, digest_of, publish
from tests.serve.tiny import tiny_model
from tests.source import ROOT, copy

pytestmark = [
    pytest.mark.images,
    needs_docker,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not shutil.which("docker-compose"), reason="NOT RUN: needs docker-compose (Debian's package)"),
    pytest.mark.skipif(python_3_12() is None, reason="NOT RUN: needs a Python 3.12, on PATH or under pyenv"),
]
START_S = 600
SECRETS = {"POSTGRES_PASSWORD": "of postgres", "S3_ACCESS_KEY": "of", "S3_SECRET_KEY": "s3", "VLLM_API_KEY": "of-vllm"}


@dataclass(frozen=True)
class Stack:
    docker: Docker
    folder: Path  # the folder of a clone
    ports: dict[str, int]  # keyed by service

    def compose(self, *words: str) -> str:
        start = ["docker-compose", "--project-name", "baton", "--env-file", ".env", "--file", "infra/compose.yaml"]
        ended = subprocess.run(
            [*start, *words], cwd=self.folder, env=self.docker.environment, check=False, capture_output=True, text=True
        )
        assert ended.returncode == 0, ended.stderr[-3000:]
        return ended.stdout

    def up(self, service: str) -> None:
        """Start a service and its dependencies, and wait until it is healthy."""
        deadline = time.monotonic() + START_S
        try:
            self.compose("up", "--detach", service)
            while self.inspect(service)["State"]["Health"]["Status"] != "healthy":
                assert time.monotonic() < deadline
                time.sleep(0.5)
        except AssertionError:
            print(self.compose("logs", "--no-color", "--tail", "50"))
            raise

    def services(self) -> list[str]:
        """Return the services that are running."""
        return self.compose("ps", "--services", "--filter", "status=running").split()

    def inspect(self, service: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.docker("inspect", f"baton_{service}_1"))[0]
        return found

    def url(self, service: str, scheme: str = "http") -> str:
        return f"{scheme}://127.0.0.1:{self.ports[service]}"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def for_this_machine(config: dict[str, Any], ports: dict[str, int]) -> None:
    """Adapt the file to docker-compose 1.29, to a daemon that does not change this machine's network, and to free
    ports."""
    del config["name"]
    for name, service in config["services"].items():
        for each in service.get("build", {}) and [service["build"]]:
            each["network"] = "host"  # this network has a package registry
        for each in service.get("ports", ()):
            service["ports"] = [each.replace(f":{each.split(':')[-2]}:", f":{ports[name]}:")]
        service["healthcheck"] |= {"retries": 1000}  # START_S is the limit, even on a busy machine
        for each in service.get("depends_on", {}).values():
            each.pop("restart", None)
    for name in ("store", "champion"):
        config["services"][name]["volumes"] += [f"{place}:{place}:ro" for place in PLACES]


@pytest.fixture(scope="module")
def stack(docker: Docker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    clone = tmp_path_factory.mktemp("clone")
    copy(clone, "infra", "tasks", "images")
    stand_ins(docker, tmp_path_factory.mktemp("stand-ins"))
    passwords_and_certificate(clone / "infra/proxy")
    config = yaml.safe_load((clone / "infra/compose.yaml").read_text())
    ports = {name: free_port() for name, service in config["services"].items() if "ports" in service}
    for_this_machine(config, ports)
    (clone / "infra/compose.yaml").write_text(yaml.safe_dump(config))
    settings = {"COMPOSE_PROFILES": "champion,proxy", "CHAMPION": NAME, "CHAMPION_RUNTIME": "runc"}
    settings |= {"BATON_SERVE": "baton-serve"} | SECRETS
    (clone / ".env").write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    found = Stack(docker, clone, ports)
    try:
        found.compose("build")
        found.up("proxy")  # and its dependencies
        yield found
    finally:
        found.compose("down", "--volumes")


@pytest.fixture
def uri(stack: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The address of MLflow's server, set for this process and its children."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", stack.url("mlflow"))
    monkeypatch.setenv("BATON_HOME", str(tmp_path / "baton"))
    mlflow.set_tracking_uri(None)
    return stack.url("mlflow")


def test_each_service_is_restricted(stack: Stack) -> None:
    for name in stack.services():
        found = stack.inspect(name)
        host = found["HostConfig"]
        assert host["ReadonlyRootfs"] and host["CapDrop"] == ["ALL"], name
        assert host["SecurityOpt"] == ["no-new-privileges:true"], name
        assert (found["Config"]["User"] in ("", "0")) == (name == "store"), name


def test_an_execution_is_recorded_and_is_on_its_page_and_after_a_restart_too(
    stack: Stack, uri: str, tmp_path: Path
) -> None:
    words = [sys.executable, "-m", "tests.tracking.one_execution", "first", str(tmp_path / "job"), "5"]
    subprocess.run(words, cwd=ROOT, check=True)
    # a run as short as this one does not wait for a server
    subprocess.run([sys.executable, "-m", "baton", "tracking", "sync"], cwd=ROOT, check=True)
    assert recorded(stack) == ["first"]
    stack.compose("down")
    stack.up("proxy")
    assert recorded(stack) == ["first"]


def recorded(stack: Stack) -> list[str]:
    """Return the names of the executions on the lineage pages."""
    found = requests.get(f"{stack.url('lineage')}/lineage/executions.json", timeout=60).json()
    return [each["name"] for each in found["executions"]]


def test_the_proxy_asks_for_passwords_and_passes_all_else(
    stack: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for way in ("UPLOAD", "DOWNLOAD"):  # the store is only known in compose's own network: docs/lineage.md
        monkeypatch.setenv(f"MLFLOW_ENABLE_PROXY_MULTIPART_{way}", "false")
    served = Proxied(stack.url("proxy", "https"), stack.folder / "infra/proxy/tls.crt")
    proxied.nobody_passes_without_a_password(served)
    proxied.the_pages_and_mlflow_answer(served)
    proxied.mlflow_s_client_works(served, tmp_path, monkeypatch)
    proxied.only_its_own_pages_change_something(served)


@pytest.mark.usefixtures("uri")
def test_the_champion_is_fetched_and_answers_who_has_its_key(stack: Stack, tmp_path: Path) -> None:
    tiny_model(tmp_path / "model")
    promote(NAME, publish(tmp_path / "model"), None)
    stack.up("champion")
    url = stack.url("champion")
    assert requests.get(f"{url}/v1/models", timeout=60).status_code == 401
    client = openai.OpenAI(base_url=f"{url}/v1", api_key=SECRETS["VLLM_API_KEY"], max_retries=0)
    completion = client.completions.create(model=NAME, prompt="def", max_tokens=4)
    assert completion.model == digest_of(tmp_path / "model")
