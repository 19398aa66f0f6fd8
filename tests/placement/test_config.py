"""A placement's translation for SkyPilot, read by SkyPilot's own parser."""

from typing import Any

import pytest

pytest.importorskip("sky", reason="SkyPilot is not in images/gpu.txt")
import sky
from pydantic import ValidationError

from baton.infra.placement.config import MACHINE_FAULT, Placement


def read(clouds: tuple[str, ...] = (), docker: str | None = None, **words: Any) -> Any:
    """Return SkyPilot's Resources, a list if they are ordered and a set otherwise."""
    placement = Placement.model_validate(words)
    which = "ordered" if placement.choose == "in_order" else "any_of"
    resources = placement.each_node() | {which: placement.choices(docker, clouds)}
    config = {"run": "true", "num_nodes": placement.nodes, "resources": resources}
    return sky.Task.from_yaml_config(config).resources


def test_the_default_is_anywhere_on_demand() -> None:
    (one,) = read()
    assert (one.cloud, one.accelerators, one.use_spot) == (None, None, False)


def test_every_field_reaches_skypilot() -> None:
    fields: dict[str, Any] = {"cpus": 8, "memory_gb": 64, "disk_gb": 500, "nodes": 4, "max_price_per_hour": 100}
    (one,) = read(accelerators=["H100:8"], infra=["aws/us-east-1"], spot="spot", docker="registry/image:1", **fields)
    assert (str(one.cloud), one.region, one.accelerators, one.use_spot) == ("AWS", "us-east-1", {"H100": 8}, True)
    assert (one.cpus, one.memory, one.disk_size, one.max_hourly_cost) == ("8+", "64+", 500, 25)
    assert one.extract_docker_image() == "registry/image:1"
    assert one.job_recovery["recover_on_exit_codes"] == [MACHINE_FAULT]
    assert one.job_recovery["max_restarts_on_errors"] == 0


def test_all_combinations_are_acceptable() -> None:
    found = read(accelerators=["H100:8", "A100-80GB:8"], infra=["aws", "gcp"], spot="spot_first")
    assert isinstance(found, set)
    assert len(found) == 8


def test_in_order_they_stay_in_order() -> None:
    found = read(accelerators=["H100:8", "L4:1"], infra=["gcp", "aws"], spot="spot_first", choose="in_order")
    assert [(next(iter(each.accelerators)), str(each.cloud), each.use_spot) for each in found] == [
        ("H100", "GCP", True),
        ("H100", "GCP", False),
        ("H100", "AWS", True),
        ("H100", "AWS", False),
        ("L4", "GCP", True),
        ("L4", "GCP", False),
        ("L4", "AWS", True),
        ("L4", "AWS", False),
    ]


def test_what_is_excluded_is_left_out() -> None:
    assert {str(each.cloud) for each in read(exclude=["azure"], clouds=("AWS", "Azure", "GCP"))} == {"AWS", "GCP"}
    kept = {str(each.region) for each in read(infra=["slurm/alpha/cpu", "slurm/beta/cpu"], exclude=["slurm/alpha"])}
    assert kept == {"beta"}


def test_an_exclusion_that_cannot_be_kept_is_an_error() -> None:
    with pytest.raises(ValueError, match="leaves none of AWS"):
        read(exclude=["aws"], clouds=("AWS",))
    with pytest.raises(ValueError, match="leaves none of the clouds"):
        read(exclude=["aws"])


@pytest.mark.parametrize("place", ["aws", "gcp/us-central1/us-central1-a", "slurm/alpha/gpu", "k8s/my-cluster"])
def test_any_infra_of_skypilot(place: str) -> None:
    (one,) = read(infra=[place])
    assert one.cloud is not None


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"accelerators": ["8xH100"]}, "match pattern"),
        ({"infra": ["aws us-east-1"]}, "match pattern"),
        ({"spot": "sometimes"}, "'spot', 'on_demand' or 'spot_first'"),
        ({"max_price_per_hour": 0}, "greater than 0"),
        ({"infra": ["aws/us-east-1"], "exclude": ["aws"]}, "leaves nothing of infra"),
        ({"infra": ["slurm"], "exclude": ["slurm/alpha"]}, "name the parts that may be used"),
    ],
)
def test_a_wrong_one_is_refused_with_the_reason(words: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Placement.model_validate(words)
