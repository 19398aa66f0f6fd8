"""Hook into TRL's KTOTrainer."""

from collections.abc import Iterator
from typing import Any

import torch
from trl import KTOTrainer

from baton.tasks.posttrain.trl_hooks.step_means import WEIGHTS, StepMeans

KL = "kl_of_step"  # key in a batch


class UnpairedTrainer(StepMeans, KTOTrainer):  # type: ignore[misc] # StepMeans replaces methods of the Trainer
    """KTOTrainer on token ids, whose KL term is estimated over a whole step; TRL estimates it in each micro batch."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.precompute_ref_logps = True  # in get_batch_samples; TRL would do it for all rows before the first step

    def get_batch_samples(self, epoch_iterator: Iterator[Any], num_batches: int, device: Any) -> tuple[list[Any], Any]:
        """Compute the reference model's log-probabilities and the KL term before the step's first forward pass."""
        batches, items = super().get_batch_samples(epoch_iterator, num_batches, device)
        batches = [self._prepare_inputs(batch) for batch in batches]
        kl = torch.zeros(2, device=device)  # sum, and number of examples
        for batch in batches:
            batch["ref_logps"], reference = self.compute_ref_log_probs(self.ref_model or self.model_wrapped, batch)
            if self.calculate_KL:
                with torch.no_grad(), self.accelerator.autocast():
                    policy = super()._compute_kl_logps(self.model_wrapped, batch)
                if batch[WEIGHTS].item() > 0:  # not a blank row
                    kl += torch.stack([(policy - reference).sum(), torch.tensor(float(len(policy)), device=device)])
        total, count = self.accelerator.gather(kl.unsqueeze(0)).sum(0)
        for batch in batches:
            batch[KL] = total / count.clamp(min=1)
            batch["ref_KL_logps"] = torch.zeros_like(batch["ref_logps"])
        return batches, items

    def _compute_kl_logps(self, model: Any, batch: Any) -> Any:
        """Return the value from which TRL subtracts `ref_KL_logps` for the mean over the examples."""
        return self.kl.expand(len(batch["label"]))

    def counts(self, row: dict[str, Any]) -> tuple[int, ...]:
        return (1,)

    def measured(self, batch: Any) -> dict[str, Any]:
        rows, chosen = len(batch["label"]), batch["label"].sum()
        return {
            "kl": rows,
            "entropy": batch["completion_mask"][:, 1:].sum(),
            **dict.fromkeys(("rewards/chosen", "logps/chosen"), chosen),
            **dict.fromkeys(("rewards/rejected", "logps/rejected"), rows - chosen),
        }

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **more: Any) -> Any:
        self.kl, weight = inputs.pop(KL), inputs[WEIGHTS].item()
        return weight * super().compute_loss(model, inputs, *args, **more)
