"""Losses that are means over a whole optimizer step."""

from collections.abc import Iterator
from typing import Any

import torch
from datasets import Dataset

from tasks.posttrain.batches import BLANK

WEIGHTS = "weights_of_losses"  # in a batch


class StepMeans:
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
