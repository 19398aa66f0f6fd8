"""The gate on the drift between trainer and vLLM."""

import pytest
import torch

from baton.tasks.core.job import StageError
from baton.tasks.posttrain.drift import beginning, check_drift, sum_and_count

MASK = torch.tensor([[True, True, True], [True, True, False]])
TRAINER = torch.tensor([[-1.0, -2.0, -3.0], [-1.0, -1.0, -9.0]])
ENGINE = torch.tensor([[-1.0, -2.0, -3.1], [-1.5, -1.0, 0.0]])  # the last column is padding


def check(most: float) -> None:
    ids = torch.tensor([[5, 6, 7], [8, 9, 0]])
    total, count = sum_and_count(TRAINER, ENGINE, MASK).tolist()
    check_drift(most, total / count, TRAINER, ENGINE, MASK, beginning(str, ids, MASK))


def test_a_mean_ratio_up_to_the_maximum_passes_whatever_the_padding() -> None:
    mean = (3 + torch.tensor(0.1).exp() + torch.tensor(0.5).exp()).item() / 5
    check(mean + 1e-4)
    with pytest.raises(StageError, match=f"is {mean:.4g}, above drift.max 1.1"):
        check(1.1)


def test_the_worst_sequences_and_tokens_come_first() -> None:
    with pytest.raises(StageError) as error:
        check(1.0)
    lines = [line.split() for line in str(error.value).splitlines()[1:]]
    assert lines[1] == ["1", "1.324", "2", "'[8,", "9]'"]
    assert lines[2][:3] == ["0", "1.035", "3"]
    assert lines[4] == ["0", "1.649", "1", "-1.0000", "-1.5000"]  # the first token of sequence 1
    assert lines[5] == ["2", "1.105", "0", "-3.0000", "-3.1000"]
