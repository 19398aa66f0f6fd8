"""KTO: Kahneman-Tversky optimization (Ethayarajh et al. 2024, arXiv:2402.01306)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from baton.infra.progress import say_once
from baton.tasks.core.job import Job
from baton.tasks.core.spec import Problem
from baton.tasks.models.rates import ANY_SIZE, Rate
from baton.tasks.posttrain.spec import TRAINING, Method, PostTrainSpec, StepCost
from baton.tasks.rows.marks import LABELS, verdict
from baton.tasks.rows.spec import MOST_SEEN
from baton.tasks.rows.stored import Row

if TYPE_CHECKING:  # encode imports Transformers, which would slow down --help
    from baton.tasks.posttrain.encode import RowEncoder

METRICS = TRAINING | {
    "kl": "kl",
    "rewards/chosen": "reward_chosen",
    "rewards/rejected": "reward_rejected",
    "rewards/margins": "margin",
    "logps/chosen": "logp_chosen",
    "logps/rejected": "logp_rejected",
}
LABEL = LABELS[0]  # the column, by TRL's name


@dataclass(frozen=True)
class Labelled:
    """The completions of one prompt, each with its label."""

    answers: list[tuple[list[int], list[int], bool]]  # prompt, completion, whether it is desirable

    @property
    def lengths(self) -> tuple[int, int]:
        return max(len(prompt) for prompt, _, _ in self.answers), max(len(answer) for _, answer, _ in self.answers)


class KTOSpec(PostTrainSpec):
    """Kahneman-Tversky optimization with TRL, on completions or conversations with a `label` (or `kto_tag`), true or
    false, or on rows of kind preference, as two completions each."""

    method: ClassVar = Method("kto", "baton.tasks.posttrain.methods.kto:train", version="3")
    rates: ClassVar = (
        Rate(50e6, 3e-4, "DPO's rate, workflows/recipes/laptop.yaml"),
        Rate(30e9, 1e-6, "TRL's default, and the highest rate that it advises with beta 0.1"),
        Rate(ANY_SIZE, 5e-7, "the lowest rate that TRL advises"),
    )

    steps: int = Field(50, ge=1, le=1_000_000, description="optimizer steps")
    batch_size: int = Field(32, ge=2, le=65_536, description="completions per optimizer step")
    beta: float = Field(0.1, gt=0, le=10, description="KTO's beta; higher: closer to the reference model")
    loss: Literal["kto", "apo_zero_unpaired"] = Field(
        "kto", description="kto, or apo_zero_unpaired, which has no KL term (arXiv:2408.06266)"
    )
    desirable_weight: float = Field(1.0, gt=0, le=1000, description="weight of the loss with label true")
    undesirable_weight: float = Field(1.0, gt=0, le=1000, description="weight of the loss with label false")

    def row_kinds(self) -> tuple[str, ...]:
        return ("prompt_completion", "messages", "preference")

    def refused(self, row: Row, kind: str) -> str:
        if kind == "preference" or verdict(row) is not None:
            return ""
        given = [f"{name}: {row[name]!r:.40}" for name in LABELS if name in row]
        has = " and ".join(given) or f"there is a row without the column {LABEL}, or with another text in it"
        return f"{has}: true or false expected (or 1 or 0), or rows of kind preference"

    def rows_problems(self, kind: str, rows: Sequence[Row]) -> Iterator[Problem]:
        """Yield nothing, but warn of a set that was read to its end and has only one label."""
        labels = [bool(verdict(row)) for row in rows if kind != "preference" and not self.refused(row, kind)]
        if len(rows) < MOST_SEEN and len({*labels}) == 1:
            say_once(f"data.{self.data}: {unbalanced(sum(labels), len(labels), self)}")
        yield from ()

    def encode(self, row: Row, kind: str, encoder: "RowEncoder") -> Labelled:
        if kind == "preference":
            chosen, rejected = encoder.preference(row)
            return Labelled([(*chosen, True), (*rejected, False)])
        return Labelled([(*encoder.completion(self.prompted(row, kind)), bool(verdict(row)))])

    def epochs(self, rows: int, kind: str) -> float | str:
        if not kind:
            return "a preference is two completions"
        return super().epochs(rows * (2 if kind == "preference" else 1), kind)

    def step_cost(self) -> StepCost:
        """Return the cost of a step, before which the reference model runs, and for the KL term both models run on
        other completions."""
        return StepCost(completions_alone=True, reference=True, forward_passes=3 if self.loss == "kto" else 1)

    def problems(self) -> list[Problem]:
        problems = super().problems()
        if self.loss == "kto" and self.micro_batch() == 1:
            problems.append(Problem("layout.micro_batch", self.layout.micro_batch, "at least 2 with loss kto, for TRL"))
        return problems


def train(job: Job) -> None:
    from datasets import Dataset
    from trl import KTOConfig

    from baton.tasks.posttrain.adapter import base_of
    from baton.tasks.posttrain.rows import kind_of
    from baton.tasks.posttrain.trainer import prepare
    from baton.tasks.posttrain.trl_hooks.kto import UnpairedTrainer
    from baton.tasks.posttrain.trl_hooks.shared_prompts import share_prompts

    setup = prepare(job, KTOSpec)
    spec, kind = setup.spec, kind_of(job, *setup.spec.row_kinds())
    chosen = setup.choose(kind, spec.steps * spec.batch_size, size=lambda row: len(row.answers))
    prompts, completions, labels = zip(*(answer for row in chosen.rows for answer in row.answers), strict=True)
    setup.note(f"{len(labels)} completions", spec.steps, spec.batch_size, len(labels))
    if text := unbalanced(sum(labels), len(labels), spec):
        job.notice(text)
    others = 2 if kind == "preference" else 1  # the KL term uses a completion of another prompt
    trainer = UnpairedTrainer(
        **setup.model_arguments(),
        args=KTOConfig(
            **setup.arguments(),
            max_length=None,  # the rows are within the limits
            loss_type=spec.loss,
            beta=spec.beta,
            desirable_weight=spec.desirable_weight,
            undesirable_weight=spec.undesirable_weight,
            lr_scheduler_type="cosine",
            train_sampling_strategy="sequential",  # in the seed's order; neighbours use each other's completions
        ),
        train_dataset=Dataset.from_dict({
            "prompt_ids": prompts,
            "completion_ids": completions,
            "KL_completion_ids": completions[-others:] + completions[:-others],
            "label": labels,
        }),
    )  # fmt: skip
    share_prompts(base_of(trainer.model), trainer.ref_model)
    setup.fit(trainer, METRICS, initial=chosen.counts() | {"desirable": sum(labels)})
    setup.finish(trainer)


def unbalanced(desirable: int, count: int, spec: KTOSpec) -> str:
    """Return advice about labels that the weights do not balance; empty if they do."""
    others = count - desirable
    if not desirable or not others:
        return f"all {count} completions have {LABEL} {desirable > 0}: KTO learns from both kinds"
    least = others * spec.undesirable_weight / desirable  # equation 8: equal total weights, or up to 4/3 of that
    if least / 1.01 <= spec.desirable_weight <= 1.34 * least:
        return ""
    return (
        f"{desirable} of {count} completions have {LABEL} true: the paper advises desirable_weight {least:.3g} to "
        f"{4 / 3 * least:.3g} with undesirable_weight {spec.undesirable_weight:g}"
    )
