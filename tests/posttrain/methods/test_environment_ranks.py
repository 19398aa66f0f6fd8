"""GRPO's conversations on several ranks with recorded turns. Each rank has the conversations of its own completions."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from tests.posttrain.methods.test_environment import ASKED, SPEC
from tests.posttrain.ranks import engine
from tests.posttrain.test_parity import difference
from tests.posttrain.tiny import metrics, tiny_model, tiny_rows, without_times, write_job
from tests.pretrain.ranks import load_libraries

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("tiny")
    load_libraries(root)
    asked = [{"prompt": [ASKED], "again": number} for number in range(4)]
    model = tiny_model(root / "model", dtype="float32", turns=True, positions=512)
    return {"model": model, "rows": tiny_rows(root / "asked", asked, "prompt")}


def job_of(folder: Path, processes: int, inputs: dict[str, Path]) -> Path:
    changed: dict[str, Any] = {
        "precision": "fp32",
        "batch_size": 16,
        "generations": 4,
        "steps": 3,  # a gradient of the fourth step amplifies rounding beyond the tolerance
        "layout": {"processes": processes, "sharding": "ddp", "micro_batch": 8 // processes},
    }
    return write_job(folder, "grpo", SPEC | changed, **inputs)


def test_two_ranks_train_the_model_of_one_and_continue_when_one_is_killed(
    inputs: dict[str, Path], tmp_path: Path
) -> None:
    one, two, killed = (
        job_of(tmp_path / name, processes, inputs) for name, processes in {"one": 1, "two": 2, "killed": 2}.items()
    )
    for job in (one, two):
        engine(job).succeed()
    run = engine(killed)
    while run.alive() and not any(line["step"] >= 2 for line in metrics(killed)):
        time.sleep(0.01)
    assert run.alive(), run.log()
    run.processes[1].kill()
    run.kill()
    engine(killed).succeed()

    assert difference(two, one) < 1
    talk = ("turns", "tool_calls", "even", "Dice")
    assert [[line[name] for name in talk] for line in metrics(two)[1:]] == [
        pytest.approx([line[name] for name in talk]) for line in metrics(one)[1:]
    ]
    assert 1.3 < metrics(two)[-1]["turns"] < 3
    assert json.loads((killed / "result.json").read_text()) == json.loads((two / "result.json").read_text())
    assert without_times(killed) == without_times(two)
