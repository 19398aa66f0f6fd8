"""Lambda, a third cloud with a small API of its own. SkyPilot's client of it is unmodified."""

from pathlib import Path
from typing import Any

import pytest

from tests.placement.cloud.account import REGIONS
from tests.placement.cloud.lambda_account import SOLD_OUT, TYPES, Rules
from tests.placement.cloud.world import BUCKET, Cloud
from tests.placement.runs import SHORT, done, placement, start
from tests.placement.world import until

pytestmark = [pytest.mark.cloud, pytest.mark.timeout(1200)]

CHIP, TYPE = "H100:8", "gpu_8x_h100_sxm5"


def placed(*infra: str, **more: Any) -> dict[str, Any]:
    return {"placement": placement(*infra, accelerators=[CHIP], storage=f"s3://{BUCKET}", **more)}


def test_where_aws_and_slurm_have_no_room_a_stage_goes_to_lambda(aws: Cloud, on_lambda: Cloud, tmp_path: Path) -> None:
    aws.capacity(dict.fromkeys(REGIONS, 0))
    Rules(capacity={"us-east-1": 0, f"us-south-1/{TYPE}": SOLD_OUT}).write()
    run = done(start(tmp_path, SHORT, placed("aws", "lambda")))
    facts = run.record().placed
    assert (facts["cloud"], facts["region"], facts["price_per_hour"]) == (
        "Lambda",
        "europe-central-1",
        TYPES[TYPE].price,
    )
    assert [line.split()[2:5] for line in aws.log().splitlines() if " launch " in line] == []
    until(aws.is_empty, "nothing is left")
