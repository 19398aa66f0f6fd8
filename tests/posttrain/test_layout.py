"""The layouts of post-training: their constraints and what they divide."""

from typing import Any

import pytest

from baton.tasks.posttrain.layout import TuningLayout
from baton.tasks.posttrain.methods.dpo.spec import DPOSpec
from baton.tasks.posttrain.methods.grpo.spec import GRPOSpec
from baton.tasks.posttrain.methods.sft import SFTSpec
from baton.tasks.posttrain.spec import PostTrainSpec


def problems(layout: dict[str, Any], spec: type[PostTrainSpec] = SFTSpec, **fields: Any) -> list[str]:
    given = {"data": "rows", "batch_size": 32, "layout": layout, **fields}
    return [str(problem) for problem in spec.model_validate(given).problems()]


@pytest.mark.parametrize(
    ("layout", "problem"),
    [
        ({"processes": 2}, "layout.sharding: 'none': ddp or fsdp2 with processes (2)"),
        ({"processes": 3, "sharding": "ddp"}, "layout.processes: 3: a divisor of batch_size 32"),
        ({"micro_batch": 12}, "layout.micro_batch: 12: a divisor of batch_size 32"),
        (
            {"cpu_offload": True},
            "layout.cpu_offload: True: false with sharding none; fsdp2 can offload, even with one process",
        ),
        ({"nodes": 2}, "layout.sharding: 'none': ddp or fsdp2 with nodes x processes (2)"),
        (
            {"nodes": 3, "processes": 4, "sharding": "ddp"},
            "layout.processes: 4: a divisor of batch_size 32, times nodes (3)",
        ),
        (
            {"processes": 4, "sharding": "fsdp2", "micro_batch": 16},
            "layout.micro_batch: 16: a divisor of batch_size 32, times processes (4)",
        ),
    ],
)
def test_a_layout_that_cannot_be_is_refused(layout: dict[str, Any], problem: str) -> None:
    assert problems(layout) == [problem]


def test_what_samples_the_model_runs_in_several_processes_too() -> None:
    layout = {"nodes": 2, "processes": 2, "sharding": "ddp"}
    assert problems(layout, DPOSpec, pairs={"rewards": ["math"]}) == []
    assert problems(layout, GRPOSpec, rewards=["math"]) == []


@pytest.mark.parametrize(
    ("processes", "batch", "micro"), [(1, 32, 32), (1, 128, 32), (1, 8, 8), (1, 48, 24), (4, 32, 8), (2, 14, 7)]
)
def test_a_micro_batch_is_the_largest_that_divides_a_process_s_share(processes: int, batch: int, micro: int) -> None:
    assert TuningLayout(processes=processes, sharding="ddp").micro_batch_of(batch) == micro


def test_a_layout_is_in_no_cache_key() -> None:
    one, other = (SFTSpec(data="rows", layout=TuningLayout(micro_batch=size)) for size in (4, 8))
    assert one.identity() == other.identity()
    what, how = other.split_options()
    assert what.with_options(how) == other
