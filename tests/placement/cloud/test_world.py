"""The world itself: unmodified SkyPilot rents machines from it."""

import pytest

from tests.placement.cloud.world import Cloud
from tests.placement.world import sky, until

pytestmark = [pytest.mark.cloud, pytest.mark.timeout(900)]


def test_a_machine_is_rented_where_there_is_room(aws: Cloud) -> None:
    aws.capacity({"us-east-1": 0})
    words = ["--infra", "aws", "--cpus", "2", "--use-spot", "-y", "-c", "first"]
    print(sky("launch", *words, "hostname; nproc; df -h /; echo $AWS_ENDPOINT_URL", timeout_s=600))
    assert [(each.region, each.spot) for each in aws.instances()] == [("us-west-2", True)]
    print(aws.log())
    sky("down", "-y", "first")
    until(lambda: not aws.instances(), "nothing is left")
