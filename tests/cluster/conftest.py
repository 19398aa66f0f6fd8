"""A Flyte cluster without Flyte's backend: admin, propeller, catalog and S3 in this process, pods as processes."""

from collections.abc import Iterator

import pytest

from infra.home import QUIET
from tests.cluster.admin import admin
from tests.cluster.client import Client
from tests.cluster.propeller import Cluster
from tests.cluster.storage import s3


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("cluster")
    with s3() as storage, admin(storage) as (service, address):
        environment = {**storage.environment(), **QUIET, "HF_HUB_OFFLINE": "1"}
        yield Cluster(storage, service, address, folder, environment)


@pytest.fixture(scope="module")
def client(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Client:
    return Client(cluster.admin, cluster.address, tmp_path_factory.mktemp("client"))
