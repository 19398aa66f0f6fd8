"""Hook into TRL's DPOTrainer."""

from collections.abc import Iterator
from typing import Any

import torch
from datasets import Dataset
from trl import DPOTrainer

from tasks.posttrain.batches import BLANK

WEIGHTS = "weights_of_losses"  # in a batch


class PairTrainer(DPOTrainer):
    """DPOTrainer on pairs of token ids. DPOConfig has no `skip_prepare_dataset`, as SFTConfig has.

    A step's loss is the mean over its pairs, and the SFT loss the mean over their chosen tokens, in whatever micro
    batches and processes; TRL takes the mean of the micro batches' means.
    """

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.collate: Any = vars(self)["data_collator"]
        self.data_collator = self._counted
        self.weights: list[float] = list(vars(self)["loss_weights"])

    def _prepare_dataset(self, dataset: Dataset, *_: Any) -> Dataset:
        return dataset

    def _counted(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        """A batch with its number of pairs and of chosen tokens; blank ones do not count."""
        counts = [(1, len(row["chosen_ids"])) for row in rows if not row.get(BLANK)]
        batch: dict[str, Any] = self.collate(rows)
        return batch | {WEIGHTS: torch.tensor(counts).reshape(-1, 2).sum(0).double()}

    def get_batch_samples(self, epoch_iterator: Iterator[Any], num_batches: int, device: Any) -> tuple[list[Any], Any]:
        """Divide the counts by their means over the step's micro batches."""
        batches, items = super().get_batch_samples(epoch_iterator, num_batches, device)
        own = torch.stack([batch[WEIGHTS] for batch in batches]).mean(0)
        mean = self.accelerator.gather(own.unsqueeze(0).to(device)).mean(0).cpu()
        for batch in batches:
            batch[WEIGHTS] = batch[WEIGHTS] / mean
        return batches, items

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **more: Any) -> Any:
        of_pairs, of_tokens = inputs.pop(WEIGHTS).tolist()
        self.loss_weights = [
            weight * (of_tokens if kind == "sft" else of_pairs)
            for kind, weight in zip(self.loss_types, self.weights, strict=True)
        ]
        return super().compute_loss(model, inputs, *args, **more)
