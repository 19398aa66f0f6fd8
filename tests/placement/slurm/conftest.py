"""The clusters that all tests of this folder share."""

from collections.abc import Iterator

import pytest

from tests.placement.slurm.clusters import SKY_CONFIG, World, clusters
from tests.placement.world import api_server, write_sky_config


@pytest.fixture(scope="session")
def slurm() -> Iterator[World]:
    write_sky_config(SKY_CONFIG)
    with clusters() as made, api_server():
        yield made
