"""The chain with each stage in the image of its family alone: `make test-images`."""

import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import yaml

from baton.tasks.core.manifest import read_manifest
from tests.cluster.chain import KINDS, digests, submit
from tests.cluster.client import Client
from tests.cluster.container import Container
from tests.cluster.pod import Pod
from tests.cluster.propeller import Cluster, Done
from tests.images.base import base
from tests.images.docker import Docker, needs_docker
from tests.images.registry import registry
from tests.source import ROOT
from tests.tracking.conftest import Server
from tests.workflows.test_pretrain_to_rl import TINY, prepare, pyflyte

pytestmark = [pytest.mark.images, needs_docker, pytest.mark.timeout(3600)]

SEED = 17
KILLED_WITHIN_S = {"prepare_corpus": 4, "pretrain": 10, "sft": 15, "grpo": 15, "evaluate": 15}  # time after the start


@contextmanager
def wheels(folder: Path) -> Iterator[dict[str, str]]:
    """Serve the folder of PIP_FIND_LINKS at an address, since a build cannot see folders of this machine. The same
    folder has the same address, so that Docker's layer cache stays valid."""
    noted = folder / "port-of-wheels"
    path = Path(os.environ.get("PIP_FIND_LINKS") or "none")
    if not path.is_dir():
        yield {}
        return
    port = int(noted.read_text()) if noted.exists() else 0
    with ThreadingHTTPServer(("127.0.0.1", port), partial(SimpleHTTPRequestHandler, directory=str(path))) as server:
        noted.write_text(str(server.server_port))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield {"PIP_FIND_LINKS": f"http://127.0.0.1:{server.server_port}/"}
        server.shutdown()


@pytest.fixture(scope="module")
def images(docker: Docker, docker_folder: Path) -> Iterator[Path]:
    """Flyte's configuration with the images, built and pushed as a user does."""
    config = docker_folder / "flyte.yaml"
    words = [sys.executable, "-m", "baton", "images"]
    with registry(docker_folder) as host, wheels(docker_folder) as sources:
        words += [f"{host}/baton", "--cpu", "--base", base(docker, "3.11"), "--config", str(config)]
        subprocess.run(words, cwd=ROOT, env={**docker.environment, **sources}, check=True)
        yield config


@pytest.fixture(scope="module")
def contained(tracked: Cluster, docker: Docker, images: Path) -> Cluster:
    return replace(tracked, pods=lambda image: partial(Container, docker, image))


@pytest.fixture(scope="module")
def client(cluster: Cluster, images: Path, tmp_path_factory: pytest.TempPathFactory) -> Client:
    client = Client(cluster.admin, cluster.address, tmp_path_factory.mktemp("client"))
    settings = yaml.safe_load(client.config.read_text()) | yaml.safe_load(images.read_text())
    client.config.write_text(yaml.safe_dump(settings))
    return client


@pytest.fixture(scope="module")
def local(vllm: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same recipe, run on this machine without containers."""
    folder = tmp_path_factory.mktemp("local")
    done = pyflyte(folder, prepare(folder, TINY))
    assert done.returncode == 0, done.stderr[-5000:]
    return folder


class AtRandom:
    """Kills one container of each of some tasks, at a random moment shortly after its start."""

    def __init__(self, chance: random.Random) -> None:
        self.chance, self.left, self.killed = chance, {**KILLED_WITHIN_S}, list[str]()

    def __call__(self, pod: Pod) -> None:
        if seconds := self.left.pop(pod.task, 0):
            time.sleep(self.chance.uniform(0, seconds))
            assert pod.alive(), f"{pod.name} ended before it was killed"
            pod.kill()
            self.killed.append(pod.task)


@pytest.fixture(scope="module")
def run(contained: Cluster, client: Client, mlflow: Server, local: Path) -> tuple[Done, AtRandom]:
    recipe = TINY | {"corpus": {**TINY["corpus"], "source": {"kind": "files", "path": str(local / "sources")}}}
    kill = AtRandom(random.Random(SEED))
    done = contained.execute(submit(client, recipe, MLFLOW_TRACKING_URI=mlflow.uri), kill)
    assert done.failed is None, done.why()
    return done, kill


def made(folder: Path) -> set[tuple[str, str]]:
    """Return the artifacts of a local run in the format that `digests` has for those in storage."""
    manifests = map(read_manifest, (folder / "baton/jobs").glob("*/output"))
    return {(each.kind, each.digest) for each in manifests if each.kind in KINDS}


def test_the_chain_runs_in_its_images_to_the_digests_of_a_local_run(
    contained: Cluster, local: Path, run: tuple[Done, AtRandom]
) -> None:
    assert digests(contained.storage) == made(local)


def test_every_stage_has_run_in_the_image_of_its_family(run: tuple[Done, AtRandom], images: Path) -> None:
    pinned = yaml.safe_load(images.read_text())["images"]
    assert {each.asked.image for each in run[0].ran} == {*pinned.values()}


def test_containers_were_killed_at_random(run: tuple[Done, AtRandom]) -> None:
    done, kill = run
    assert {*kill.killed} == KILLED_WITHIN_S.keys()
    assert sorted(each.task for each in done.ran if each.failed) == sorted(kill.killed)
