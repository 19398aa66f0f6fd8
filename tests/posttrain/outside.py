"""A method as a user would add it, without any hook of Baton: TRL's ORPO on token ids."""

from typing import TYPE_CHECKING, Any, ClassVar

from baton.tasks.core.job import Job
from baton.tasks.models.rates import ANY_SIZE, Rate
from baton.tasks.posttrain.methods.dpo.pairs import Pair
from baton.tasks.posttrain.spec import TRAINING, Example, Method, PostTrainSpec, StepCost
from baton.tasks.rows.stored import Row

if TYPE_CHECKING:
    from baton.tasks.posttrain.encode import RowEncoder

METRICS = TRAINING | {
    "rewards/margins": "margin",
    "logps/chosen": "logp_chosen",
    "logps/rejected": "logp_rejected",
    "nll_loss": "nll",
}


class OutsideSpec(PostTrainSpec):
    """Odds ratio preference optimization."""

    method: ClassVar = Method("outside", "tests.posttrain.outside:train", version="1")
    rates: ClassVar = (Rate(ANY_SIZE, 1e-3, "a test's"),)

    def row_kinds(self) -> tuple[str, ...]:
        return ("preference",)

    def encode(self, row: Row, kind: str, encoder: "RowEncoder") -> Example:
        (prompt, chosen), (other, rejected) = encoder.preference(row)
        return Pair.of(prompt, chosen, other, rejected)

    def step_cost(self) -> StepCost:
        return StepCost(sequences=2)


def train(job: Job) -> None:
    from datasets import Dataset
    from trl.experimental.orpo import ORPOConfig, ORPOTrainer

    from baton.tasks.posttrain.encode import IGNORED
    from baton.tasks.posttrain.rows import kind_of
    from baton.tasks.posttrain.trainer import prepare

    class OnTokens(ORPOTrainer):  # type: ignore[misc]
        def tokenize_row(self, feature: Any, model: Any = None) -> dict[str, Any]:
            prompt = feature["prompt_ids"]
            row = {"prompt_input_ids": prompt, "prompt_attention_mask": [1] * len(prompt)}
            for name in ("chosen", "rejected"):
                answer = feature[f"{name}_ids"]
                row[f"{name}_input_ids"] = prompt + answer
                row[f"{name}_attention_mask"] = [1] * len(prompt + answer)
                row[f"{name}_labels"] = [IGNORED] * len(prompt) + answer
            return row

    setup = prepare(job, OutsideSpec)
    spec = setup.spec
    chosen = setup.choose(kind_of(job, *spec.row_kinds()), spec.steps * spec.batch_size)
    ids = {
        name: [[*map(int, getattr(pair, name))] for pair in chosen.rows]
        for name in ("prompt_ids", "chosen_ids", "rejected_ids")
    }
    trainer = OnTokens(
        **setup.model_arguments(),
        args=ORPOConfig(**setup.arguments(), max_length=setup.limits.total, remove_unused_columns=False),
        train_dataset=Dataset.from_dict(ids),
    )
    setup.fit(trainer, METRICS)
    setup.finish(trainer)
