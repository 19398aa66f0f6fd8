"""The weights of a step's losses, on the device where Accelerate puts batches, and the means that are recorded."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import trl.trainer.grpo_trainer
from torch import Tensor

from baton.tasks.core.job import open_job
from baton.tasks.posttrain.engine import work
from baton.tasks.posttrain.methods.grpo import trainer as grpo
from baton.tasks.posttrain.trl_hooks.step_means import WEIGHTS, StepMeans
from tests.posttrain.recorded import generate_recorded
from tests.posttrain.tiny import metrics, reward, tiny_model, tiny_rows, write_job


class Gathers:
    """An accelerator with one process."""

    def gather(self, tensor: Tensor) -> Tensor:
        return tensor


class Trainer:
    """The part of TRL's trainer that makes batches."""

    def __init__(self, batches: list[dict[str, Tensor]]) -> None:
        self.data_collator: Any = None
        self.accelerator, self.batches = Gathers(), batches

    def get_batch_samples(self, *_: Any) -> tuple[list[dict[str, Tensor]], None]:
        return self.batches, None


class Weighed(StepMeans, Trainer):
    def counts(self, row: dict[str, Any]) -> tuple[int, ...]:
        return (1,)


def weights(*values: float, device: str) -> list[Tensor]:
    batches = [{WEIGHTS: torch.tensor([value], dtype=torch.float64, device=device)} for value in values]
    made, _ = Weighed(batches=batches).get_batch_samples(iter(()), len(values), torch.device(device))
    return [batch[WEIGHTS] for batch in made]


def test_micro_batches_weigh_by_what_they_have_of_the_step() -> None:
    assert [tensor.item() for tensor in weights(1.0, 3.0, device="cpu")] == [0.5, 1.5]


def test_the_weights_stay_on_the_batches_device() -> None:
    """Tensors of two devices cannot be combined; "meta" represents a GPU."""
    assert {tensor.device.type for tensor in weights(1.0, 3.0, device="meta")} == {"meta"}


ROWS: list[dict[str, Any]] = [
    {"prompt": f"{number}: {'sun ' * (number % 3)}->", "completion": " sea" * (1 + number * number % 11)}
    for number in range(16)
]
LABELLED = [row | {"label": number < 12} for number, row in enumerate(ROWS)]
PAIRS = [
    {"prompt": row["prompt"], "chosen": row["completion"], "rejected": " no" * (1 + number % 5)}
    for number, row in enumerate(ROWS)
]
METHODS: list[tuple[str, list[dict[str, Any]], dict[str, Any]]] = [
    ("sft", ROWS, {}),
    ("sft", ROWS, {"packing": True, "max_prompt_tokens": 16, "max_new_tokens": 16}),
    ("dpo", PAIRS, {}),
    ("kto", LABELLED, {}),
    ("grpo", ROWS, {"generations": 4, "beta": 0.1}),
]


@pytest.mark.long
@pytest.mark.parametrize(("stage", "rows", "more"), METHODS)
def test_what_a_step_records_does_not_depend_on_the_micro_batch(
    stage: str, rows: list[dict[str, Any]], more: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One micro batch of 16 rows is compared with four of 4 rows, which have different numbers of tokens and labels;
    in the second step, policy and reference differ."""
    kind = "preference" if stage == "dpo" else "prompt_completion"
    inputs = {
        "model": tiny_model(tmp_path / "model", dtype="float32"),
        "rows": tiny_rows(tmp_path / "rows", rows, kind),
    }
    spec = {"data": "uneven", "steps": 2, "batch_size": 16, "learning_rate": 0.003, "precision": "fp32", **more}
    if stage == "grpo":
        spec["rewards"] = [reward(tmp_path / "rewards", "near")]
        monkeypatch.setattr(trl.trainer.grpo_trainer, "VLLMGeneration", None)  # generate_recorded replaces it
    steps = []
    for size in (16, 4):
        job = write_job(tmp_path / f"{size}", stage, spec | {"layout": {"micro_batch": size}}, **inputs)
        monkeypatch.setattr(grpo, "generate_live", partial(generate_recorded, job))
        work(open_job(job))
        steps.append(metrics(job)[2])

    whole, divided = ({name: value for name, value in step.items() if name != "time"} for step in steps)
    assert divided == pytest.approx(whole, rel=1e-4)
    assert stage in ("sft", "grpo") or divided["margin"] != 0
    assert stage != "grpo" or divided["kl"] > 0
    if stage == "kto":
        assert divided["margin"] == pytest.approx(divided["reward_chosen"] - divided["reward_rejected"])
