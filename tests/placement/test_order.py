"""The order of places and the cost of a stage, from SkyPilot's offline optimizer with a few hand-written prices."""

from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("sky", reason="SkyPilot is not in images/gpu.txt")
from sky import Task

from baton.infra.placement.config import Placement
from baton.infra.placement.prices import ordered
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


@pytest.mark.long
@pytest.mark.parametrize(
    "placement",
    [
        {"accelerators": ["A100-80GB:8", "H100:8"], "spot": "spot_first"},
        {"accelerators": ["H100:8"], "infra": ["aws", "gcp", "lambda"], "spot": "spot_first", "nodes": 2},
        {"accelerators": ["H100:8", "A100-80GB:8"], "infra": ["gcp", "aws"], "choose": "in_order"},
        {"cpus": 4, "memory_gb": 16, "spot": "spot_first"},
        {"infra": ["aws/us-west-2", "aws"], "spot": "spot_first", "cpus": 2},
        {"accelerators": ["H100:8"], "exclude": ["lambda", "aws/us-east-1"], "max_price_per_hour": 90},
    ],
)
def test_a_job_tries_the_places_of_its_plan_in_that_order(sky: Optimizer, placement: dict[str, Any]) -> None:
    tried = sky.order(**placement)
    assert tried
    for each in tried:
        assert each["planned"].startswith(each["place"].split()[0])
        assert each["place"].split()[1] in each["planned"]
        assert each["planned"].endswith("spot" if each["spot"] else "on-demand")


def test_without_prices_here_the_order_is_the_recipe_s_and_spot_first(capsys: pytest.CaptureFixture[str]) -> None:
    placement = Placement(infra=["gcp", "aws"], spot="spot_first")
    places = [(each["infra"], each["use_spot"]) for each in ordered(placement, None, [])["ordered"]]
    assert places == [("gcp", True), ("aws", True), ("gcp", False), ("aws", False)]
    clusters = Placement(infra=["slurm/beta/cpu", "slurm/alpha/cpu"])
    assert [each["infra"] for each in ordered(clusters, None, [])["ordered"]] == ["slurm/beta/cpu", "slurm/alpha/cpu"]


def test_skypilot_s_controller_still_loses_the_order_of_any_of() -> None:
    """If this fails, skypilot#10490 is fixed, and a job may use `any_of` again (infra/placement/prices.py)."""
    from sky.jobs.controller import _add_k8s_annotations

    task = Task.from_yaml_config({"run": "true", "resources": {"any_of": Placement(spot="spot_first").choices()}})
    assert isinstance(task.resources, set)
    _add_k8s_annotations(task, 1)
    assert isinstance(task.resources, list)
