"""A method without code for processes and short steps trains the same model in every layout."""

from pathlib import Path
from typing import Any

import pytest

from tests.posttrain.ranks import run_all
from tests.posttrain.test_parity import SPEC, difference, gradient_difference
from tests.posttrain.tiny import metrics, repeated_words, tiny_model, tiny_rows, write_job

LAYOUTS: dict[str, dict[str, Any]] = {
    "alone": {},
    "ddp": {"processes": 2, "sharding": "ddp", "micro_batch": 2},
    "fsdp2": {"processes": 2, "sharding": "fsdp2", "micro_batch": 4},
}


@pytest.mark.long
def test_a_method_from_outside_trains_the_model_of_one_process(tmp_path: Path) -> None:
    """There are 29 pairs of different lengths. The last step of an epoch has 5, and its loss is a mean over tokens
    and pairs."""
    rows = [
        row | {"chosen": row["completion"] * (1 + number % 3), "rejected": " no, not this" * (1 + number % 2)}
        for number, row in enumerate(repeated_words(29))
    ]
    inputs = {
        "model": tiny_model(tmp_path / "model", dtype="float32"),
        "rows": tiny_rows(tmp_path / "rows", rows, "preference"),
    }
    spec = SPEC | {"max_new_tokens": 32, "steps": 5, "learning_rate": 0.001}
    jobs = {
        name: write_job(tmp_path / name, "outside", spec | ({"layout": layout} if layout else {}), **inputs)
        for name, layout in LAYOUTS.items()
    }
    run_all([jobs["alone"]], None)
    run_all([jobs["ddp"], jobs["fsdp2"]], 2)

    assert metrics(jobs["ddp"])[-1]["margin"] != 0
    for name in ("ddp", "fsdp2"):
        found = difference(jobs[name], jobs["alone"]), gradient_difference(jobs[name], jobs["alone"])
        print(name, found)
        assert max(found) < 1
