"""Two nodes on AWS that share only a bucket."""

from pathlib import Path

import pytest

from tests.placement.cloud.account import BUCKET
from tests.placement.cloud.world import Cloud
from tests.placement.runs import done, placement, start
from tests.placement.world import until

pytestmark = [pytest.mark.cloud, pytest.mark.timeout(1800)]

TRAINING = {"steps": 400, "checkpoints": {"every": 40}, "validate_every": 200}


def test_a_lost_node_changes_nothing(aws: Cloud, tmp_path: Path) -> None:
    alone = {"layout": {"micro_batch": 4, "processes": 2}}
    together = {
        "layout": {"micro_batch": 4, "nodes": 2},
        "placement": placement("aws", nodes=2, cpus=2, storage=f"s3://{BUCKET}/nodes"),
    }
    placed = start(tmp_path / "placed", TRAINING, together)
    placed.reaches(100)
    nodes = aws.instances()
    assert len(nodes) == 2
    aws.preempt(nodes[1].id)
    expected = done(start(tmp_path / "here", TRAINING, alone))
    done(placed)
    assert placed.digest == expected.digest
    assert placed.losses() == expected.losses()
    assert placed.record().placed["recoveries"] == 1
    until(lambda: not aws.instances(), "nothing is left")
