"""Hook into TRL's SFTTrainer."""

from typing import Any

import torch
from trl import SFTTrainer

from baton.tasks.posttrain.encode import IGNORED
from baton.tasks.posttrain.trl_hooks.step_means import StepMetrics


class LabelledTrainer(StepMetrics, SFTTrainer):  # type: ignore[misc] # StepMetrics replaces methods of the Trainer
    """SFTTrainer whose metrics, like its loss, are means over a step's tokens with a loss."""

    def measured(self, batch: Any) -> dict[str, Any]:
        return dict.fromkeys(("entropy", "mean_token_accuracy"), (batch["labels"][:, 1:] != IGNORED).sum())

    def _track_num_input_tokens(self, inputs: Any) -> None:
        """Count the tokens, except those of a blank row."""
        blank = not (inputs["labels"] != IGNORED).any()
        none = {"attention_mask": torch.zeros_like(inputs["input_ids"])} if blank else {}
        super()._track_num_input_tokens({**inputs, **none})
