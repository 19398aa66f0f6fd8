"""The world that all tests of this folder share. Each test starts with an empty world that has capacity everywhere."""

from collections.abc import Iterator

import pytest

from tests.placement.cloud import lambda_account
from tests.placement.cloud.aws import Rules
from tests.placement.cloud.world import Cloud, cloud
from tests.placement.runs import end_runs


@pytest.fixture(scope="session")
def world() -> Iterator[Cloud]:
    with cloud() as made:
        yield made


@pytest.fixture
def aws(world: Cloud) -> Iterator[Cloud]:
    Rules().write()
    yield world
    end_runs()
    world.end_jobs()


@pytest.fixture
def on_lambda(world: Cloud) -> Iterator[Cloud]:
    lambda_account.Rules().write()
    yield world
    lambda_account.Rules().write()
    lambda_account.terminate()
