"""Code shared by the three post-training engines."""

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from transformers import Trainer, TrainingArguments

from baton.tasks.core.job import Job, StageError
from baton.tasks.posttrain.layout import TuningLayout
from baton.tasks.posttrain.methods.sft import SFTSpec
from baton.tasks.posttrain.spec import PostTrainSpec
from baton.tasks.posttrain.trainer import Setup, checkpoints, prepare


class Rows(torch.nn.Module):
    """A model that records the rows that it receives, and fails at a given step."""

    def __init__(self, breaks_at: int | None) -> None:
        super().__init__()
        self.weight, self.seen, self.breaks_at = torch.nn.Parameter(torch.zeros(1)), list[int](), breaks_at

    def forward(self, row: torch.Tensor, **_: Any) -> dict[str, torch.Tensor]:
        if len(self.seen) == self.breaks_at:
            raise KeyboardInterrupt
        self.seen.append(int(row))
        return {"loss": (self.weight - row).square().mean()}


def seen_rows(job: Job, breaks_at: int | None = None) -> list[int]:
    """Return the rows, out of five, that twelve steps read, or the steps before a failure."""
    args = TrainingArguments(
        output_dir=str(checkpoints(job).path),
        max_steps=12,
        save_steps=1,
        per_device_train_batch_size=1,
        train_sampling_strategy="group_by_length",
        use_cpu=True,
        report_to="none",
        remove_unused_columns=False,
    )
    rows = Dataset.from_list([{"row": row, "length": 1} for row in range(5)])
    model = Rows(breaks_at)
    with suppress(KeyboardInterrupt):
        setup = Setup(job, SFTSpec(), job.work, model, None, SFTSpec().limits(64), encoder=None)  # type: ignore[arg-type]
        setup.fit(Trainer(model, args, train_dataset=rows), {})
    return model.seen


def test_a_resumed_run_sees_the_same_rows_in_its_second_epoch(tmp_path: Path) -> None:
    whole, broken = (Job(tmp_path / name, "sft", "hf_model", {}, {}) for name in ("whole", "broken"))
    assert seen_rows(broken, breaks_at=7) + seen_rows(broken) == seen_rows(whole)


def test_without_the_hook_it_would_see_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("baton.tasks.posttrain.trainer.order_by_epoch", lambda trainer: None)
    whole, broken = (Job(tmp_path / name, "sft", "hf_model", {}, {}) for name in ("whole", "broken"))
    assert seen_rows(broken, breaks_at=7) + seen_rows(broken) != seen_rows(whole)


def test_other_processes_than_the_layout_s_are_refused(tmp_path: Path) -> None:
    spec = SFTSpec(layout=TuningLayout(processes=2, sharding="ddp"))
    job = Job(tmp_path, "sft", "hf_model", spec.model_dump(mode="json"), {})
    with pytest.raises(StageError, match="1 processes are running; layout needs 2"):
        prepare(job, SFTSpec)


def test_every_problem_of_a_spec_is_found_at_once() -> None:
    spec = PostTrainSpec(data="chat", steps=5, warmup_steps=5, batch_size=10, layout=TuningLayout(micro_batch=4))

    assert [problem.path for problem in spec.problems()] == ["layout.micro_batch", "warmup_steps"]
