"""SFT: supervised fine-tuning, on rows of kind messages, prompt_completion or text."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from baton.tasks.core.job import Job, StageError
from baton.tasks.core.spec import Problem
from baton.tasks.models.rates import ANY_SIZE, Rate
from baton.tasks.posttrain.spec import TRAINING, Method, PostTrainSpec
from baton.tasks.rows.check import COLUMNS
from baton.tasks.rows.marks import refusal
from baton.tasks.rows.stored import TRAIN, Row

if TYPE_CHECKING:  # encode imports Transformers, which would slow down --help
    from baton.tasks.posttrain.encode import RowEncoder

METRICS = TRAINING | {
    "mean_token_accuracy": "token_accuracy",
    "num_input_tokens_seen": "tokens",  # unlike TRL's num_tokens, the Trainer's count is in its checkpoints
}


@dataclass(frozen=True)
class Learned:
    """An encoded row as arrays of int32."""

    ids: Any
    labels: Any  # -100 where there is no loss
    lengths: tuple[int, ...]


class SFTSpec(PostTrainSpec):
    """Supervised fine-tuning with TRL, on rows of kind messages, prompt_completion or text."""

    method: ClassVar = Method("sft", "baton.tasks.posttrain.methods.sft:train", version="5")
    splits_messages: ClassVar = False
    rates: ClassVar = (
        Rate(50e6, 5e-4, "workflows/recipes/laptop.yaml, 5.8 M parameters"),
        Rate(3e9, 2e-5, "TRL's default; SmolLM3 3B"),
        Rate(30e9, 1e-5, "between Zephyr 7B's 2e-5 and Tulu 3 8B's 5e-6"),
        Rate(ANY_SIZE, 2e-6, "Tulu 3 70B"),
    )

    steps: int = Field(150, ge=1, le=1_000_000, description="optimizer steps")
    batch_size: int = Field(32, ge=1, le=65_536, description="rows per optimizer step")
    loss: Literal["assistant", "completion", "all"] | None = Field(
        None,
        description="tokens with a loss: those of the assistant's turns (messages), of the completion "
        "(prompt_completion), or all; null: the narrowest that the rows allow",
    )
    packing: bool = Field(False, description="pack several rows into one sequence of the maximum length, for speed")

    def row_kinds(self) -> tuple[str, ...]:
        return ("messages", "prompt_completion", "text")

    def refused(self, row: Row, kind: str) -> str:
        return refusal(row, kind) if kind in ("messages", "prompt_completion") else ""

    def rows_problems(self, kind: str, rows: Sequence[Row]) -> Iterator[Problem]:
        """Yield a problem for a loss that the rows do not allow."""
        from baton.tasks.posttrain.encode import loss_of

        try:
            loss = loss_of(self.loss, kind)
        except StageError as error:
            yield Problem("loss", self.loss, f"a loss that the rows allow; {error}")
            return
        turns = [turn for row in rows for turn in row.get("messages", ()) if kind == "messages"]
        if loss == "all" and not all(turn.get(TRAIN, True) for turn in turns):
            yield Problem("loss", loss, "assistant: some turns of the rows are not to be learned")

    def uses_marks(self, kind: str) -> bool:
        from baton.tasks.posttrain.encode import loss_of

        return loss_of(self.loss, kind) == "assistant"

    def encode(self, row: Row, kind: str, encoder: "RowEncoder") -> Learned:
        import numpy as np

        from baton.tasks.posttrain.encode import IGNORED, loss_of

        loss = loss_of(self.loss, kind)
        ids, labels = encoder.learned(row, loss)
        completion = sum(label != IGNORED for label in labels)
        parts = kind == "prompt_completion" and loss == "completion"
        lengths = (len(ids) - completion, completion) if parts else (len(ids),)
        return Learned(np.array(ids, np.int32), np.array(labels, np.int32), lengths)

    def epochs(self, rows: int, kind: str) -> float | str:
        return "several rows are packed into a sequence" if self.packing else super().epochs(rows, kind)


def train(job: Job) -> None:
    from datasets import Dataset
    from trl import SFTConfig

    from baton.tasks.posttrain.rows import columns_of, kind_of
    from baton.tasks.posttrain.trainer import prepare
    from baton.tasks.posttrain.trl_hooks.sft import LabelledTrainer

    setup = prepare(job, SFTSpec)
    spec, limits, kind = setup.spec, setup.limits, kind_of(job, *setup.spec.row_kinds())
    sequences = spec.steps * spec.batch_size
    if spec.packing:
        chosen = setup.choose(kind, sequences * limits.total, size=lambda row: len(row.ids))
    else:
        chosen = setup.choose(kind, sequences)
    if unlearned := [name for name in columns_of(job) if name not in COLUMNS[kind]]:
        job.notice(f"columns that are not learned: {', '.join(unlearned)}")
    trainer = LabelledTrainer(
        **setup.model_arguments(),
        args=SFTConfig(
            **setup.arguments(),
            include_num_input_tokens_seen="non_padding",
            packing=spec.packing,
            max_length=limits.total if spec.packing else None,  # the rows are within the limits
            lr_scheduler_type="cosine",
            train_sampling_strategy="random" if spec.packing else "group_by_length",  # saves padding
            dataset_kwargs={"skip_prepare_dataset": not spec.packing},
        ),
        train_dataset=Dataset.from_dict(
            {"input_ids": [row.ids for row in chosen.rows], "labels": [row.labels for row in chosen.rows]}
        ),
    )
    setup.note(f"{len(chosen.rows)} rows", spec.steps, spec.batch_size, len(trainer.train_dataset))
    setup.fit(trainer, METRICS, initial=chosen.counts())
    setup.finish(trainer)
