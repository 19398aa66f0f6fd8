"""The order of places and the cost of a stage: SkyPilot's optimizer, offline, on a few hand-written prices."""

from collections.abc import Iterator

import pytest

pytest.importorskip("sky", reason="SkyPilot is not in images/gpu.txt")

from tests.placement.optimizer import Optimizer, optimizer


@pytest.fixture(scope="module")
def sky(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Optimizer]:
    with optimizer(tmp_path_factory.mktemp("home")) as asked:
        yield asked


def test_the_cheapest_first_and_then_whoever_has_capacity(sky: Optimizer) -> None:
    assert sky.places(accelerators=["H100:8"]) == [
        "lambda/us-south-1 gpu_8x_h100_sxm5",
        "gcp/us-central1 a3-highgpu-8g",
        "aws/us-east-1 p5.48xlarge",
        "aws/us-west-2 p5.48xlarge",
    ]


def test_of_several_accelerators_the_cheapest(sky: Optimizer) -> None:
    assert sky.places(accelerators=["H100:8", "A100-80GB:8"])[:2] == [
        "lambda/us-south-1 gpu_8x_a100_80gb_sxm4",
        "lambda/us-south-1 gpu_8x_h100_sxm5",
    ]


def test_in_order_the_first_that_there_is(sky: Optimizer) -> None:
    placement = {"accelerators": ["H100:8", "A100-80GB:8"], "infra": ["aws", "lambda"], "choose": "in_order"}
    assert sky.places(**placement)[:3] == [
        "aws/us-east-1 p5.48xlarge",
        "aws/us-west-2 p5.48xlarge",
        "lambda/us-south-1 gpu_8x_h100_sxm5",
    ]


def test_spot_first_and_on_demand_when_there_is_none(sky: Optimizer) -> None:
    tried = sky.order(accelerators=["H100:8"], infra=["aws"], spot="spot_first")
    assert [each["spot"] for each in tried] == [True, True, False, False]
    assert [each["price"] for each in tried] == [24.1, 29.5, 98.32, 98.32]


def test_spot_alone(sky: Optimizer) -> None:
    assert all(each["spot"] for each in sky.order(accelerators=["H100:8"], spot="spot"))


def test_what_is_excluded_is_not_tried(sky: Optimizer) -> None:
    tried = sky.places(accelerators=["H100:8"], exclude=["lambda", "aws/us-east-1"])
    assert tried == ["gcp/us-central1 a3-highgpu-8g", "aws/us-west-2 p5.48xlarge"]


def test_the_limit_of_the_price_is_for_all_nodes(sky: Optimizer) -> None:
    limit = {"accelerators": ["H100:8"], "infra": ["aws", "lambda"], "max_price_per_hour": 50}
    assert sky.places(**limit) == ["lambda/us-south-1 gpu_8x_h100_sxm5"]
    assert sky.places(**limit, nodes=3) == []


def test_cpus_are_enough(sky: Optimizer) -> None:
    assert sky.places(cpus=4, memory_gb=16, infra=["aws", "gcp"]) == [
        "aws/us-east-1 m6i.2xlarge",
        "gcp/us-central1 n2-standard-8",
    ]


def test_the_record_has_the_price_that_was_chosen(sky: Optimizer) -> None:
    tried = sky.order(accelerators=["H100:8"], spot="spot_first", nodes=2)
    assert [each["recorded"] for each in tried] == pytest.approx([each["price"] for each in tried])
