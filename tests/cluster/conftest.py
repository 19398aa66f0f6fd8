"""A Flyte cluster without Flyte's backend: admin, propeller, catalog and S3 run in this process, and pods are
processes."""

import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from baton.infra.paths import QUIET
from tests.cluster.admin import admin
from tests.cluster.client import Client
from tests.cluster.propeller import Cluster
from tests.cluster.storage import s3
from tests.images.docker import Docker, daemon
from tests.source import ROOT
from tests.tracking.conftest import Server, empty_store, free_port

__all__ = ["empty_store"]

VALUES = yaml.safe_load((ROOT / "infra/flyte/values.yaml").read_text())
TASK_RESOURCES = VALUES["configuration"]["inline"]["task_resources"]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("cluster")
    with s3() as storage, admin(storage) as (service, address):
        environment = {**storage.environment(), **QUIET, "HF_HUB_OFFLINE": "1"}
        yield Cluster(storage, service, address, folder, environment, TASK_RESOURCES)


@pytest.fixture(scope="module")
def mlflow(tmp_path_factory: pytest.TempPathFactory, empty_store: Path) -> Iterator[Server]:
    """An `mlflow server`."""
    store = Path(shutil.copy(empty_store, tmp_path_factory.mktemp("mlflow")))
    server = Server(store, free_port())
    server.start()
    yield server
    server.kill()


@pytest.fixture(scope="module")
def tracked(cluster: Cluster, mlflow: Server) -> Cluster:
    """A cluster whose operator has configured an MLflow server for every pod."""
    return replace(cluster, environment={**cluster.environment, "MLFLOW_TRACKING_URI": mlflow.uri})


@pytest.fixture(scope="module")
def client(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Client:
    return Client(cluster.admin, cluster.address, tmp_path_factory.mktemp("client"))


@pytest.fixture(scope="session")
def docker_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of the daemon and the registry, which takes gigabytes; BATON_IMAGES names a folder that later test
    runs reuse."""
    if kept := os.environ.get("BATON_IMAGES"):
        yield Path(kept)
        return
    path = tmp_path_factory.mktemp("docker")
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="session")
def docker(docker_folder: Path) -> Iterator[Docker]:
    with daemon(docker_folder) as docker:
        yield docker
