"""The weights of a step's losses, on the device on which Accelerate puts batches."""

from typing import Any

import torch
from torch import Tensor

from tasks.posttrain.trl_hooks.step_means import WEIGHTS, StepMeans


class Gathers:
    """An accelerator of one process."""

    def gather(self, tensor: Tensor) -> Tensor:
        return tensor


class Trainer:
    """One of TRL's, as far as it makes batches."""

    def __init__(self, batches: list[dict[str, Tensor]]) -> None:
        self.data_collator: Any = None
        self.accelerator, self.batches = Gathers(), batches

    def get_batch_samples(self, *_: Any) -> tuple[list[dict[str, Tensor]], None]:
        return self.batches, None


class Weighed(StepMeans, Trainer):
    pass


def weights(*values: float, device: str) -> list[Tensor]:
    batches = [{WEIGHTS: torch.tensor([value], dtype=torch.float64, device=device)} for value in values]
    made, _ = Weighed(batches=batches).get_batch_samples(iter(()), len(values), torch.device(device))
    return [batch[WEIGHTS] for batch in made]


def test_micro_batches_weigh_by_what_they_have_of_the_step() -> None:
    assert [tensor.item() for tensor in weights(1.0, 3.0, device="cpu")] == [0.5, 1.5]


def test_the_weights_stay_on_the_batches_device() -> None:
    """Nothing can be computed between tensors of two devices; "meta" stands for a GPU."""
    assert {tensor.device.type for tensor in weights(1.0, 3.0, device="meta")} == {"meta"}
