"""Losses and metrics that are means over an optimizer step.

`fit` gives `StepMeans` to each trainer that has neither of these classes nor its own data loader, so that a method gets
step means and blank rows without code for them.
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from accelerate.utils import gather_object
from datasets import Dataset
from transformers import Trainer

from baton.tasks.posttrain.batches import BLANK
from baton.tasks.posttrain.encode import IGNORED

WEIGHTS = "weights_of_losses"  # key in a batch
ROWS, SHARES, NUMBERS = "rows_alone", "shares_of_rows", "numbers_of_rows"  # keys in a batch of rows computed alone


class StepMetrics:
    """Base class to put before a TRL trainer in a trainer's bases.

    A metric is the mean over all of a step's values, however they are divided into micro batches and processes; TRL
    uses the mean of the micro batches' means, in which every process has equally many rows, including blank ones.
    """

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.sums: dict[str, list[float]] = {}  # each metric's sum and count in this process's part of a step

    def measured(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Return the metrics to record, by TRL's names, each with the number of tokens or rows of the batch that it is
        the mean of."""
        raise NotImplementedError

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **more: Any) -> Any:
        weights = inputs.pop(WEIGHTS, None)
        counts = self.measured(inputs)
        loss, means = self._loss_and_means(model, inputs, *args, **more)
        if weights is None or weights.any():  # not a blank row
            self._add({name: (means[name], float(count)) for name, count in counts.items() if count})
        return loss

    def _loss_and_means(self, model: Any, inputs: Any, *args: Any, **more: Any) -> tuple[Any, dict[str, float]]:
        """Return TRL's loss of some rows, and the means that TRL records for them."""
        trainer: Any = super()
        with _by_itself(vars(self)["accelerator"]):
            loss = trainer.compute_loss(model, inputs, *args, **more)
        means: dict[str, float] = {}
        for store in filter(None, (vars(self).get(name) for name in ("_metrics", "_stored_metrics"))):
            means |= {name: float(sum(values) / len(values)) for name, values in store["train"].items() if values}
            store["train"].clear()
        return loss, means

    def _add(self, measured: Mapping[str, tuple[float, float]]) -> None:
        """Add means, weighted by their counts, to the sums of the step."""
        for name, (mean, count) in measured.items():
            sums = self.sums.setdefault(name, [0.0, 0.0])
            sums[:] = sums[0] + mean * count, sums[1] + count

    def log(self, logs: dict[str, float], *args: Any) -> None:
        trainer: Any = super()
        parts: list[dict[str, list[float]]] = gather_object([self.sums])
        self.sums = {}
        for name in dict.fromkeys(name for part in parts for name in part):  # a process may lack a metric
            total, count = (sum(part[name][place] for part in parts if name in part) for place in (0, 1))
            if count:
                logs[name] = total / count
        if {"rewards/chosen", "rewards/rejected"} <= logs.keys():
            logs["rewards/margins"] = logs["rewards/chosen"] - logs["rewards/rejected"]
        trainer.log(logs, *args)


@contextmanager
def _by_itself(accelerator: Any) -> Iterator[None]:
    """Limit a process's metrics in this context to its own rows: TRL's gathering needs the same number in each
    process."""
    accelerator.gather = accelerator.gather_for_metrics = lambda values: values
    try:
        yield
    finally:
        del accelerator.gather, accelerator.gather_for_metrics


class StepMeans(StepMetrics):
    """Base class to put before a TRL trainer in the bases of a trainer that gets token ids.

    A loss is the mean over the step, however the step is divided into micro batches and processes; TRL uses the mean of
    the micro batches' means. How a trainer combines the losses of several rows is unknown, so each row is computed
    alone. The step's loss is the mean over its rows, or over its tokens if the trainer's loss is that of the model's
    `labels`. A trainer whose rows can be computed together, which is faster, defines `counts` and `measured`.
    """

    counts: ClassVar[Any] = None
    """A function that returns a row's weight in the mean of each loss, such as (1,), or (1, 24) for a second loss that
    is a mean over tokens. With it, compute_loss multiplies each loss by its part of batch[WEIGHTS]."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.set_collator()

    def set_collator(self) -> None:
        """Let the trainer collate rows with their counts, or each row alone."""
        self.sums = {}
        self.collate: Any = vars(self)["data_collator"]
        self.data_collator = self._counted if self.counts else self._one_by_one

    def measured(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Return nothing: without `counts`, each row is computed alone, and all metrics have the row's weight."""
        return {}

    def _prepare_dataset(self, dataset: Dataset, *_: Any) -> Dataset:
        """Return the dataset unchanged. TRL's method tokenizes, and only SFT's config has `skip_prepare_dataset`."""
        return dataset

    def _counted(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        """Collate rows with their counts; blank rows do not count."""
        counts = [torch.tensor(self.counts(row)) * (not row.get(BLANK)) for row in rows]
        batch: dict[str, Any] = self.collate(rows)
        return batch | {WEIGHTS: torch.stack(counts).sum(0).double()}

    def _one_by_one(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        """Collate each row as a separate batch, with its weight."""
        alone = [self.collate([{name: value for name, value in row.items() if name != BLANK}]) for row in rows]
        numbers = [0.0 if row.get(BLANK) else self._number(batch) for row, batch in zip(rows, alone, strict=True)]
        counted = torch.tensor(numbers, dtype=torch.float64)
        return {ROWS: alone, NUMBERS: counted, WEIGHTS: torch.ones(1, dtype=torch.float64)}  # rows have shares

    def _number(self, row: Mapping[str, Any]) -> float:
        """Return a row's weight in the step's mean: its number of labels, if Transformers' loss is the mean over
        labels."""
        own: Any = self
        if "labels" in row and (own.model_accepts_loss_kwargs or callable(own.compute_loss_func)):
            return float((row["labels"][..., 1:] != IGNORED).sum())
        return 1.0

    def get_batch_samples(self, epoch_iterator: Iterator[Any], num_batches: int, device: Any) -> tuple[list[Any], Any]:
        """Divide the weights of batches or rows by their mean over the step's micro batches."""
        trainer: Any = super()
        batches, items = trainer.get_batch_samples(epoch_iterator, num_batches, device)
        if not self.counts:
            self._share(batches, device)
            return batches, None
        local_means = torch.stack([batch[WEIGHTS] for batch in batches]).mean(0)  # on a GPU if Accelerate moved them
        mean = vars(self)["accelerator"].gather(local_means.unsqueeze(0).to(device)).mean(0).to(local_means.device)
        for batch in batches:
            batch[WEIGHTS] = batch[WEIGHTS] / mean
        return batches, items

    def _share(self, batches: list[dict[str, Any]], device: Any) -> None:
        """Give each row its share of the step's mean, and each process equally many rows in a micro batch, since a
        forward pass is collective with FSDP, and with DDP's buffers."""
        own: Any = self
        of_rows = [[len(batch[ROWS]), float(batch[NUMBERS].sum())] for batch in batches]
        of_all = own.accelerator.gather(torch.tensor([of_rows], dtype=torch.float64, device=device))
        total = float(of_all[..., 1].sum()) or 1.0
        micro_batches = 1 if callable(own.compute_loss_func) else len(batches)  # the Trainer divides by this number
        for batch, most in zip(batches, of_all[..., 0].amax(0).tolist(), strict=True):
            blank = int(most) - len(batch[ROWS])
            numbers = batch[NUMBERS].tolist() + [0.0] * blank
            batch[ROWS] = [*batch[ROWS], *batch[ROWS][:1] * blank]
            batch[NUMBERS], batch[SHARES] = numbers, [each * len(of_all) * micro_batches / total for each in numbers]

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **more: Any) -> Any:
        if self.counts:
            return super().compute_loss(model, inputs, *args, **more)
        losses = []
        for row, share, number in zip(inputs[ROWS], inputs[SHARES], inputs[NUMBERS], strict=True):
            counts = self.measured(row)
            loss, means = self._loss_and_means(model, dict(row), *args, **more)
            losses.append(loss * share)
            known = {name: mean for name, mean in means.items() if not math.isnan(mean)}  # NaN: does not apply
            if number:
                self._add({name: (mean, number) for name, mean in known.items() if not counts or name in counts})
        return torch.stack(losses).sum()


def add_step_means(trainer: Any) -> None:
    """Add `StepMeans` to the classes of a trainer that has no step means, unless it overrides the data loader, as
    trainers that sample their completions do."""
    kind = type(trainer)
    if not issubclass(kind, StepMetrics) and kind.get_train_dataloader is Trainer.get_train_dataloader:
        trainer.__class__ = type(kind.__name__, (StepMeans, kind), {})
        trainer.set_collator()
