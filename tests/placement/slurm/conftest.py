"""One set of clusters for all tests of this folder."""

from collections.abc import Iterator

import pytest

from tests.placement.slurm.world import World, world


@pytest.fixture(scope="session")
def slurm() -> Iterator[World]:
    with world() as made:
        yield made
