"""Losses and metrics that are means over a whole optimizer step."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from datasets import Dataset

from tasks.posttrain.batches import BLANK

WEIGHTS = "weights_of_losses"  # in a batch


class StepMetrics:
    """Goes before a TRL trainer among the bases of one.

    A metric is the mean over what a step has of it, in whatever micro batches and processes; TRL takes the mean of the
    micro batches' means, in each of which every process has equally many rows, blank ones among them.
    """

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.sums: dict[str, list[float]] = {}  # of a step, in this process: each metric's sum, and of how many

    def measured(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """The metrics to record, by TRL's names, and how many tokens or rows of the batch each is the mean of."""
        raise NotImplementedError

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **more: Any) -> Any:
        trainer: Any = super()
        weights = inputs.pop(WEIGHTS, None)
        counts = self.measured(inputs)
        with _by_itself(vars(self)["accelerator"]):
            loss = trainer.compute_loss(model, inputs, *args, **more)
        means = vars(self)["_metrics"]["train"]
        for name, number in counts.items():
            count = float(number) if weights is None or weights.any() else 0.0  # of a blank row
            value = means[name][0] * count if count else 0.0
            sums = self.sums.setdefault(name, [0.0, 0.0])
            sums[:] = sums[0] + value, sums[1] + count
        means.clear()
        return loss

    def log(self, logs: dict[str, float], *args: Any) -> None:
        trainer: Any = super()
        if self.sums:
            accelerator = vars(self)["accelerator"]
            sums = torch.tensor([list(self.sums.values())], dtype=torch.float64, device=accelerator.device)
            totals = zip(self.sums, accelerator.gather(sums).sum(0).tolist(), strict=True)
            logs |= {name: total / count for name, (total, count) in totals if count}
            if {"rewards/chosen", "rewards/rejected"} <= logs.keys():
                logs["rewards/margins"] = logs["rewards/chosen"] - logs["rewards/rejected"]
            self.sums = {}
        trainer.log(logs, *args)


@contextmanager
def _by_itself(accelerator: Any) -> Iterator[None]:
    """In this context a process's metrics are of its own rows: TRL's gathering needs as many in each process."""
    accelerator.gather = accelerator.gather_for_metrics = lambda values: values
    try:
        yield
    finally:
        del accelerator.gather, accelerator.gather_for_metrics


class StepMeans(StepMetrics):
    """Goes before a TRL trainer among the bases of one that gets token ids.

    A loss is the mean over what a step has of it, in whatever micro batches and processes; TRL takes the mean of the
    micro batches' means. `counts` says what each row of a batch adds to each loss's mean.
    """

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.collate: Any = vars(self)["data_collator"]
        self.data_collator = self._counted

    def counts(self, row: dict[str, Any]) -> tuple[int, ...]:
        """One example, if there is one loss."""
        return (1,)

    def _prepare_dataset(self, dataset: Dataset, *_: Any) -> Dataset:
        """TRL's tokenizes; not every config has `skip_prepare_dataset`, as SFT's has."""
        return dataset

    def _counted(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        """A batch with its counts; blank rows do not count."""
        counts = [torch.tensor(self.counts(row)) * (not row.get(BLANK)) for row in rows]
        batch: dict[str, Any] = self.collate(rows)
        return batch | {WEIGHTS: torch.stack(counts).sum(0).double()}

    def get_batch_samples(self, epoch_iterator: Iterator[Any], num_batches: int, device: Any) -> tuple[list[Any], Any]:
        """Divide the counts by their means over the step's micro batches."""
        trainer: Any = super()
        batches, items = trainer.get_batch_samples(epoch_iterator, num_batches, device)
        local_means = torch.stack([batch[WEIGHTS] for batch in batches]).mean(0)  # on a GPU if Accelerate moved them
        mean = vars(self)["accelerator"].gather(local_means.unsqueeze(0).to(device)).mean(0).to(local_means.device)
        for batch in batches:
            batch[WEIGHTS] = batch[WEIGHTS] / mean
        return batches, items
