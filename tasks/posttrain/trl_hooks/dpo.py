"""Hook into TRL's DPOTrainer."""

from typing import Any

from trl import DPOTrainer

from baton.tasks.posttrain.trl_hooks.step_means import WEIGHTS, StepMeans


class PairTrainer(StepMeans, DPOTrainer):  # type: ignore[misc] # StepMeans replaces methods of the Trainer
    """DPOTrainer on pairs of token ids. A step's loss is the mean over its pairs, and the SFT loss is the mean over
    their chosen tokens."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.weights: list[float] = list(vars(self)["loss_weights"])

    def counts(self, row: dict[str, Any]) -> tuple[int, ...]:
        return (1, len(row["chosen_ids"]))

    def measured(self, batch: Any) -> dict[str, Any]:
        of_pairs = ("rewards/chosen", "rewards/rejected", "rewards/accuracies", "logps/chosen", "logps/rejected")
        mask = batch["completion_mask"]
        return {"entropy": mask[:, 1:].sum()} | dict.fromkeys(of_pairs, len(mask) // 2)

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **more: Any) -> Any:
        of_pairs, of_tokens = inputs[WEIGHTS].tolist()
        self.loss_weights = [
            weight * (of_tokens if kind == "sft" else of_pairs)
            for kind, weight in zip(self.loss_types, self.weights, strict=True)
        ]
        return super().compute_loss(model, inputs, *args, **more)
