"""Lambda, a third cloud with a different, small API. SkyPilot's client for it is unmodified."""

from pathlib import Path
from typing import Any

import pytest

from tests.placement.cloud.account import REGIONS
from tests.placement.cloud.jobs import nothing_is_left, rented
from tests.placement.cloud.lambda_account import SOLD_OUT, TYPES, Rules
from tests.placement.cloud.world import Cloud
from tests.placement.runs import SHORT, done, start

pytestmark = [pytest.mark.cloud, pytest.mark.timeout(1200)]

CHIPS = ["L4:1", "H100:1"]  # AWS's g6.xlarge and Lambda's gpu_1x_h100_pcie
TYPE = "gpu_1x_h100_pcie"


def gpus(*infra: str) -> dict[str, Any]:
    return rented(*infra, accelerators=CHIPS, choose="in_order", spot="on_demand")


def test_a_stage_goes_to_lambda_where_aws_is_empty(aws: Cloud, on_lambda: Cloud, tmp_path: Path) -> None:
    aws.capacity(dict.fromkeys(REGIONS, 0))
    Rules(capacity={"us-east-1": 0, "us-south-1": SOLD_OUT}).write()
    placed = done(start(tmp_path, SHORT, gpus("aws", "lambda"))).record().placed
    assert (placed["cloud"], placed["region"]) == ("Lambda", "europe-central-1")
    assert placed["price_per_hour"] == TYPES[TYPE].price and "H100:1" in placed["resources"]
    nothing_is_left(aws)
