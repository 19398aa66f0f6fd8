"""Hook into TRL's DPOTrainer."""

from typing import Any

from datasets import Dataset
from trl import DPOTrainer


class PairTrainer(DPOTrainer):
    """DPOTrainer on pairs of token ids. DPOConfig has no `skip_prepare_dataset`, as SFTConfig has."""

    def _prepare_dataset(self, dataset: Dataset, *_: Any) -> Dataset:
        return dataset
